"""The whole stress over threads and a broker in this process; and over brokers that do something wrong."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mpbroker import Delivery, Message, MessageBroker, Subscription
from mpbroker.cli.crew import Crew, TimeUp
from mpbroker.cli.stress.conductor import Conductor, Outcome
from mpbroker.cli.stress.plan import Plan
from mpbroker.cli.stress.report import as_dict, as_text
from tests.cli.thread_crew import ThreadCrew

LAWS = "the histories of all processes keep the laws of the broker"
SMALL = Plan(publishers=2, messages=20, workers=2, batch=4, timeout=20.0)


def conduct(plan: Plan) -> Outcome:
    outcome = Outcome(plan, "threads")
    crew = ThreadCrew()
    with MessageBroker() as broker, tempfile.TemporaryDirectory() as folder:
        conductor = Conductor(plan, cast("Crew", crew), broker, outcome, Path(folder))
        try:
            conductor.run(lambda _published, _acked: None)
        finally:
            conductor.call_off()
            crew.close()
            conductor.close()
    return outcome


def failing(plan: Plan) -> dict[str, list[str]]:
    checks = conduct(plan).checks
    return {check.law: check.offenders.named for check in checks if not check.holds}


@contextmanager
def polls_of(name: str, change: Callable[[list[Delivery]], list[Delivery]]) -> Iterator[None]:
    """Have the polls of one subscription hand over something else."""
    poll = Subscription._poll

    def changed(self: Subscription, *arguments: Any) -> list[Delivery]:
        while True:
            held = poll(self, *arguments)
            if self.name != name:
                return held
            if held := change(held):
                return held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subscription, "_poll", changed)
        yield


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("priorities", [False, True])
def test_a_thousand_messages_from_four_threads_are_each_acked_once_by_three(batch: int, priorities: bool) -> None:
    plan = Plan(publishers=4, messages=250, workers=3, batch=batch, priorities=priorities)
    outcome = conduct(plan)

    assert [check.law for check in outcome.checks if not check.holds] == []
    assert sum(outcome.shares.values()) == 1000
    assert outcome.latency.count == 1000
    assert outcome.stats["workers"].acked == outcome.stats["observer"].acked == 1000
    assert "all checks passed" in as_text(outcome)
    assert as_dict(outcome)["passed"] is True


def test_several_groups_each_ack_everything() -> None:
    outcome = conduct(replace(SMALL, subscriptions=3))

    assert outcome.passed
    assert len(outcome.shares) == 6
    assert sum(outcome.shares.values()) == 3 * 40


def test_publishers_wait_while_a_subscription_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpbroker.cli.stress.plan.BACKLOG_MESSAGES", 8)
    outcome = conduct(replace(SMALL, messages=200))

    assert outcome.passed
    assert outcome.waits > 0


def test_a_lost_message_is_found_without_waiting_for_the_limit() -> None:
    def lose(held: list[Delivery]) -> list[Delivery]:
        for delivery in held:
            if delivery.message_id == "m7":
                delivery.ack()
        return [delivery for delivery in held if delivery.message_id != "m7"]

    with polls_of("workers", lose):
        said = failing(SMALL)
    assert said["workers: every id was acked exactly once"] == ["1 were never acked: m7"]
    assert said["workers: every id was delivered exactly once"] == ["1 were never delivered: m7"]


def test_a_message_handed_to_two_is_found() -> None:
    twice: list[Delivery] = []

    def repeat(held: list[Delivery]) -> list[Delivery]:
        again = [delivery for delivery in held if delivery.message_id == "m7"]
        twice.extend(again)
        return held + again

    with polls_of("workers", repeat):
        said = failing(SMALL)
    assert said["workers: every id was delivered exactly once"] == [
        "m7: held by 0 killed workers, and delivered again as attempts [1]"
    ]
    assert any("m7" in text for text in said["workers: every id was acked exactly once"])


def test_an_observer_that_sees_another_order_is_found() -> None:
    draw = random.Random(1)

    def shuffle(held: list[Delivery]) -> list[Delivery]:
        return draw.sample(held, len(held))

    with polls_of("observer", shuffle):
        said = failing(replace(SMALL, messages=100))
    assert list(said) == ["observer: saw every id once, in id order", LAWS]
    assert all(" came after m" in text for text in said["observer: saw every id once, in id order"])


def test_payloads_that_were_swapped_are_found() -> None:
    def swap(held: list[Delivery]) -> list[Delivery]:
        messages = [delivery.message for delivery in held]
        for delivery, other in zip(held, reversed(messages), strict=True):
            delivery._message = replace(delivery.message, payload=other.payload)
        return held

    with polls_of("workers", swap):
        said = failing(SMALL)
    assert list(said) == ["every payload is the one published under its id"]


def test_payloads_that_were_damaged_are_found() -> None:
    def damage(held: list[Delivery]) -> list[Delivery]:
        for delivery in held:
            if delivery.message_id == "m9":
                delivery._message = replace(delivery.message, payload=delivery.payload[:-1] + b"?")
        return held

    with polls_of("workers", damage):
        said = failing(SMALL)
    (text,) = said.pop("every payload is the one published under its id")
    assert text in {
        f"m9 came to {name} otherwise than published: its body is damaged, or that of another message"
        for name in ("w1", "w2")
    }
    assert said == {}


def test_acks_that_do_nothing_end_in_a_report_of_what_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(self: Subscription, message_ids: Sequence[str], member: str) -> list[bool]:
        return [True] * len(message_ids)

    monkeypatch.setattr(Subscription, "_ack_ids", pretend)
    # Everybody believes that all is done; the broker's figures say otherwise.
    outcome = conduct(SMALL)

    assert not outcome.passed
    failed = {check.law: check.offenders.named for check in outcome.checks if not check.holds}
    assert set(failed) == {
        "workers: the broker's figures agree; nothing is left, dead or dropped",
        "observer: the broker's figures agree; nothing is left, dead or dropped",
        LAWS,
    }
    assert "3 of 9 checks FAILED" in as_text(outcome)
    assert as_dict(outcome)["passed"] is False


def test_a_reader_that_never_comes_is_stuck_and_named() -> None:
    def keep(held: list[Delivery]) -> list[Delivery]:
        return []

    with polls_of("observer", keep), pytest.raises(TimeUp) as caught:
        conduct(replace(SMALL, timeout=1.0))
    text = str(caught.value)
    assert "did not end in 1 s" in text
    assert "observer: ready" in text
    assert "in_flight 40" in text


def test_a_publisher_that_fails_is_named_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = MessageBroker._publish

    def refuse(self: MessageBroker, *arguments: Any) -> list[Message]:
        messages = publish(self, *arguments)
        if any(message.message_id == "m9" for message in messages):
            raise RuntimeError("no more")
        return messages

    monkeypatch.setattr(MessageBroker, "_publish", refuse)
    outcome = conduct(SMALL)

    (ended,) = [check for check in outcome.checks if check.law == "every process ended as planned"]
    assert "RuntimeError: no more" in "".join(ended.offenders.named)
    assert not outcome.passed
