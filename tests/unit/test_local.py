"""What holds of a broker in this process alone."""

from __future__ import annotations

import pickle

import pytest

from mpbroker import MessageBroker


def test_a_broker_of_this_process_says_why_it_cannot_go_to_another() -> None:
    broker = MessageBroker()
    broker.create_topic("t")
    for thing in (broker, broker.subscribe("t", "s")):
        with pytest.raises(TypeError, match=r"cannot go to another one; .*BrokerManager"):
            pickle.dumps(thing)
