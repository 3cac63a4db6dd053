"""The demonstration: the contract step by step, a small stress, and real work on real files, with a worker killed."""
