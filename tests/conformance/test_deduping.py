"""A subscriber that skips what it has done already."""

from __future__ import annotations

import pytest

from mpbroker import (
    DedupingSubscriber,
    Message,
    Subscriber,
)
from mpbroker.api import BrokerAPI
from tests.conformance.subscribers import Recorder, audit_of
from tests.conformance.support import only


@only("local")
def test_a_deduping_subscriber_skips_what_its_inner_has_finished(live: BrokerAPI) -> None:
    recorder = Recorder()
    deduping = DedupingSubscriber(recorder)
    assert deduping.subscriber_id == "audit"
    audit_of(live, deduping)
    message = live.publish("orders", "book")
    assert live.run_until_idle() == 1
    assert live.subscription("orders", "audit").offer(message) is True
    assert live.run_until_idle() == 1
    assert recorder.calls == ["book"]


def _message(number: int, uid: str | None = None) -> Message:
    return Message("orders", number, message_id=f"m{number}", sequence=number, uid=uid or f"uid{number}")


def test_duplicates_are_told_by_uid_and_not_by_id() -> None:
    recorder = Recorder()
    deduping = DedupingSubscriber(recorder)
    for message in (_message(1), _message(1), _message(1, "another"), _message(2, "uid1")):
        deduping.on_message(message)
    assert recorder.calls == [1, 1]


def test_one_whose_processing_failed_is_not_remembered() -> None:
    recorder = Recorder(fails={1: 1})
    deduping = DedupingSubscriber(recorder)
    with pytest.raises(ValueError, match="not now"):
        deduping.on_message(_message(1))
    deduping.on_message(_message(1))
    deduping.on_message(_message(1))
    assert recorder.calls == [1, 1]


def test_the_oldest_are_forgotten_beyond_the_capacity() -> None:
    recorder = Recorder()
    deduping = DedupingSubscriber(recorder, capacity=2)
    for number in (1, 2, 3, 3, 2, 1):
        deduping.on_message(_message(number))
    assert recorder.calls == [1, 2, 3, 1]


def test_a_subscriber_is_abstract() -> None:
    with pytest.raises(TypeError):
        Subscriber()  # type: ignore[abstract]
    for bad in (0, -1, True, 1.5):
        with pytest.raises((TypeError, ValueError), match="capacity"):
            DedupingSubscriber(Recorder(), capacity=bad)  # type: ignore[arg-type]
