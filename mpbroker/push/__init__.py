"""Push: a dispatcher polls a subscription and calls its subscriber, one message at a time.

It runs where the subscriber is, so it works alike for a broker in this process and one in another.
Imports the value modules only; what it needs of a subscription is the Dispatchable protocol.
"""
