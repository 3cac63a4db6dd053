"""Decoders and state machines under any bytes whatever: targets, the kept corpus, and what runs them."""
