"""Broker and clients on one thread, in virtual time, over a simulated transport: one seed is one run.

The product's own code runs: the engine, sessions and the loop on one side, the proxies and their connections on the
other. Simulated are the kernel (sockets, process ends, time) and the scheduler, which draws who goes on next.
"""
