"""The ledger finds every way in which a run can be wrong, and names the messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpbroker.cli.stress.ledger import SHOWN, Kill, Offenders
from mpbroker.messages import SubscriptionStats
from mpbroker.testing.checker import Law, Violation
from tests.cli.history import PLAN, History, batch, figures, killing, publish

PUBLISHED = "every message was published once, and the ids have no gap"
PAYLOADS = "every payload is the one published under its id"
ACKED = "workers: every id was acked exactly once"
DELIVERED = "workers: every id was delivered exactly once"
DELIVERED_AGAIN = "workers: every id was delivered once, and once more for each worker killed holding it"
KILLED = "workers: each kill struck a worker that held messages; they came again"
OBSERVED = "observer: saw every id once, in id order"
FIGURES = "workers: the broker's figures agree; nothing is left, dead or dropped"
LAWS = "the histories of all processes keep the laws of the broker"
ENDED = "every process ended as planned"


def test_a_right_run_breaks_no_law() -> None:
    assert History().failing() == {}
    assert len(History().checks()) == 9


def test_a_right_run_with_a_kill_breaks_no_law() -> None:
    assert killing().failing() == {}


# -- publishing -----------------------------------------------------------------------------------------------------


def test_a_message_that_was_never_published_is_named() -> None:
    history = History()
    del history.published[-1]
    history.batches = [batch("w1", 1, 2, 3, 4, 5), batch("observer", 1, 2, 3, 4, 5)]

    failing = history.failing()
    assert failing[PUBLISHED] == ["1 were not published: m6", "publisher 1 published 2 of 3"]
    assert failing[ACKED] == ["1 were never acked: m6"]
    assert failing[OBSERVED] == ["1 were never seen: m6"]


def test_an_id_that_was_given_twice_is_named() -> None:
    history = History()
    history.published[3] = publish(1, 1, 3)

    assert history.failing()[PUBLISHED] == ["m3 was given twice", "1 were not published: m4"]


def test_an_id_beyond_the_last_is_named() -> None:
    history = History()
    history.published[5] = publish(1, 2, 7)

    assert "m7 to m7 are not among m1 to m6" in history.failing()[PUBLISHED]


def test_a_message_that_reached_no_subscription_is_found() -> None:
    history = History()
    history.topic = replace(history.topic, unrouted=1, published=7)

    assert history.failing()[PUBLISHED] == [
        "the broker counted 7 of 6 messages",
        "1 messages reached no subscription",
    ]


# -- what the checker found ----------------------------------------------------------------------------------------


def test_what_the_checker_found_breaks_laws_of_the_run() -> None:
    history = History()
    history.verdict.violations = [
        Violation(Law.GENUINE, "m1 is another message"),
        Violation(Law.HELD, "m2 was held by two", "stress/workers", 2, ("1.0 w1: it", "2.0 w2: it")),
    ]
    history.verdict.by_law.update({Law.GENUINE: 1, Law.HELD: 3})

    assert history.failing() == {
        PAYLOADS: ["m1 is another message"],
        LAWS: [f"{Law.HELD}: m2 was held by two\n    1.0 w1: it\n    2.0 w2: it"],
    }
    assert [check.offenders.count for check in history.checks() if not check.holds] == [1, 3]


def test_the_time_from_publish_to_delivery_is_measured() -> None:
    latency = History().ledger().latency

    assert (latency.count, latency.largest) == (6, 4)


# -- acks and deliveries --------------------------------------------------------------------------------------------


def test_a_lost_message_is_named() -> None:
    history = History()
    del history.batches[2]

    failing = history.failing()
    assert failing[ACKED] == ["1 were never acked: m6"]
    assert failing[DELIVERED] == ["1 were never delivered: m6"]
    assert failing[FIGURES] == ["deliveries is 6 and should be 5"]


def test_a_message_acked_by_two_is_named() -> None:
    history = History()
    history.batches.insert(2, batch("w1", 4))

    failing = history.failing()
    assert failing[ACKED] == ["acked twice: m4, the second time by w2"]
    assert failing[DELIVERED] == ["m4: held by 0 killed workers, and delivered again as attempts [1]"]


def test_a_message_delivered_again_without_a_kill_is_named() -> None:
    history = History()
    history.batches[0].answers = [True, False]
    history.batches.insert(1, batch("w2", 2, attempt=2))
    history.stats["workers"] = replace(figures(6), deliveries=7, redelivered=1, late_acks=1)

    failing = history.failing()
    assert failing[ACKED] == ["an ack was refused: m2 by w1"]
    assert failing[DELIVERED] == ["m2: held by 0 killed workers, and delivered again as attempts [2]"]
    assert failing[FIGURES] == ["late_acks is 1 and should be 0"]


def test_a_refused_ack_is_named() -> None:
    history = History()
    history.batches[1].answers = [True, False, True]

    assert history.failing() == {ACKED: ["1 were never acked: m4", "an ack was refused: m4 by w2"]}


def test_acks_without_an_answer_are_named() -> None:
    history = History()
    history.batches[0].answers = None

    assert history.failing()[ACKED] == [
        "2 were never acked: m1, m2",
        "2 were held and never acked or given back: m1, m2",
    ]


# -- kills ----------------------------------------------------------------------------------------------------------


def test_what_a_killed_worker_held_must_come_again() -> None:
    history = killing()
    del history.batches[3]
    history.stats["workers"] = replace(figures(6), acked=5, in_flight=1, deliveries=7, redelivered=1)

    failing = history.failing()
    assert failing[ACKED] == ["1 were never acked: m4"]
    assert failing[DELIVERED_AGAIN] == ["m4: held by 1 killed workers, and delivered again as attempts []"]
    assert failing[FIGURES] == ["acked is 5 and should be 6", "in_flight is 1 and should be 0"]


def test_what_comes_again_must_count_its_attempts() -> None:
    history = killing()
    history.batches[2].attempts = [3]

    assert history.failing() == {DELIVERED_AGAIN: ["m3: held by 1 killed workers, and delivered again as attempts [3]"]}


def test_what_a_killed_worker_did_not_hold_must_not_come_again() -> None:
    history = killing()
    history.batches.insert(2, batch("w1", 2, attempt=2))

    assert "m2: held by 0 killed workers, and delivered again as attempts [2]" in history.failing()[DELIVERED_AGAIN]


def test_a_kill_that_was_not_made_is_found() -> None:
    history = killing()
    history.kills = []

    assert history.failing()[KILLED] == ["0 of 1 kills were made"]


@pytest.mark.parametrize("kill", [Kill(0, "w2", 0, 4), Kill(0, "w2", 2, 1)])
def test_a_kill_that_struck_a_worker_without_messages_is_found(kill: Kill) -> None:
    history = killing()
    history.kills = [kill]

    assert history.failing() == {KILLED: [f"w2 said that it held {kill.held}, and the broker knew of {kill.in_flight}"]}


def test_redeliveries_that_are_missing_are_found() -> None:
    history = killing()
    history.stats["workers"] = replace(history.stats["workers"], redelivered=0)

    failing = history.failing()
    assert failing[KILLED] == ["0 redeliveries after 1 kills"]
    assert failing[FIGURES] == ["redelivered is 0 and should be 2"]


# -- the observer ---------------------------------------------------------------------------------------------------


def test_messages_out_of_order_are_named() -> None:
    history = History()
    history.batches[3] = batch("observer", 1, 3, 2)

    assert history.failing() == {OBSERVED: ["m2 came after m3"]}


def test_messages_seen_twice_are_named() -> None:
    history = History()
    history.batches[4] = batch("observer", 4, 5, 6, 5)

    failing = history.failing()
    assert failing[OBSERVED] == ["m5 was seen again, as attempt 1", "m5 came after m6"]


def test_with_priorities_order_is_asked_for_within_each() -> None:
    history = History(plan=replace(PLAN, priorities=True))
    history.batches[3:] = [batch("observer", 2, 4, 1, 3, 6, 5)]
    history.batches[3].priorities = [3, 3, 0, 0, 3, 0]
    assert history.failing() == {}

    history.batches[3].priorities = [3, 3, 0, 0, 0, 0]
    assert history.failing() == {f"{OBSERVED} within its priority": ["m5 came after m6"]}


# -- the broker's figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SubscriptionStats.__slots__)
def test_a_figure_of_the_broker_that_contradicts_the_readers_is_named(name: str) -> None:
    history = History()
    stats = history.stats["workers"]
    history.stats["workers"] = replace(stats, **{name: getattr(stats, name) + 1})

    said = history.failing()[FIGURES]
    assert any(text.startswith(f"{name} is ") for text in said)


def test_places_that_do_not_add_up_are_found() -> None:
    history = History()
    history.stats["observer"] = replace(history.stats["observer"], acked=5)

    assert history.failing() == {
        FIGURES.replace("workers", "observer"): [
            "accepted 6, and the places hold 5",
            "acked is 5 and should be 6",
        ]
    }


# -- the rest -------------------------------------------------------------------------------------------------------


def test_a_process_that_ended_otherwise_is_named() -> None:
    assert History(unplanned=["w1 ended with exit code 1"]).failing() == {ENDED: ["w1 ended with exit code 1"]}


def test_many_offenders_are_counted_and_the_first_named() -> None:
    offenders = Offenders()
    for number in range(100):
        offenders.add(f"m{number}")
    offenders.add_ids("were lost", range(1, 1001))

    assert offenders.count == 1100
    assert len(offenders.named) == SHOWN
    other = Offenders()
    other.merge("x ", offenders)
    assert (other.count, other.named[0]) == (1100, "x m0")


def test_one_line_names_many_ids() -> None:
    offenders = Offenders()
    offenders.add_ids("were lost", range(1, 24))

    assert offenders.named == [f"23 were lost: {', '.join(f'm{n}' for n in range(1, 21))} and 3 more"]
