"""The broker as a process of its own: where it lives, who may connect, how its clients talk to it."""
