"""The stress: publishers, worker groups and an observer as processes, and a ledger that proves what became of each
message."""
