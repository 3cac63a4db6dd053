"""What is fuzzed: each module has ``target(data: bytes) -> None``, which raises when a law is broken."""
