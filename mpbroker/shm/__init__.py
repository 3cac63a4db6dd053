"""Shared memory between a client and its broker: the bytes of a connection without the kernel. See ring."""
