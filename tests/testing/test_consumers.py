"""What the checker makes of consumers, whose polls nobody saw: what it must allow, and nothing beyond that."""

from __future__ import annotations

import pytest

from tests.testing.telling import LEASE_S, Got, Tale

LEASE_MS = 1000 * LEASE_S


def begun(prefetch: int = 10, messages: int = 3) -> Tale:
    """Some messages, and a consumer c."""
    tale = Tale()
    tale.publish(1, 10, messages)
    tale.consume("c", 12, prefetch)
    return tale


def ended(tale: Tale) -> None:
    """The consumer gets one message more and is closed: before that it had nothing that it did not show."""
    tale.publish(3, 900)
    tale.take("c", 910, Got(3, 9000))
    tale.close("c", 920)


def test_what_is_yielded_noted_and_closed_breaks_no_law() -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256), Got(2, 257), granted=20)
    tale.note("c", 40, 1, 256)
    tale.take("c", 45, Got(3, 258), granted=20)
    tale.note("c", 50, 2, 257)
    tale.note("c", 52, 3, 258)
    tale.close("c", 60)
    tale.end(70, acked=3, deliveries=3)

    verdict = tale.verdict()
    assert verdict.report() == []
    assert (verdict.deliveries, verdict.acked) == (3, 3)


def test_a_consumer_whose_beginning_is_not_told_is_an_error() -> None:
    tale = Tale()
    tale.take("c", 30)
    with pytest.raises(ValueError, match="how a consumer of c began"):
        tale.verdict()


# -- acks --------------------------------------------------------------------------------------------------------------


def test_what_was_noted_is_acked_once_the_close_was_answered() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.close("c", 50)
    tale.poll("w", 60, Got(1, 512, 2, redelivered=True))

    assert tale.laws(drained=False) == {"HELD": "m1: c acked it, and it was handed to w after that"}


def test_what_was_noted_and_not_acked_at_the_end_is_found_in_the_figures() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.close("c", 50)
    tale.end(60, ready=1, deliveries=1)

    assert tale.laws()["FIGURES"] == "acked is 0, and should be 1"


@pytest.mark.parametrize("comes_again", [False, True])
def test_what_was_noted_before_a_death_may_be_acked_or_not(*, comes_again: bool) -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.fault("kill", "c", 50)
    tale.died("c", 60)
    if comes_again:
        tale.poll("w", 70, Got(1, 512, 2, redelivered=True))
        tale.ack("w", 80, 1, 512)
    tale.end(90, acked=1, deliveries=1 + comes_again, redelivered=int(comes_again))

    assert tale.laws() == {}


@pytest.mark.parametrize("late", [0, 1])
def test_an_ack_that_was_sent_after_its_lease_may_be_late_or_not(late: int) -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.close("c", 50, until=LEASE_MS + 100)
    if late:
        tale.poll("w", LEASE_MS + 110, Got(1, 512, 2, redelivered=True))
        tale.ack("w", LEASE_MS + 120, 1, 512)
    tale.end(LEASE_MS + 200, acked=1, deliveries=1 + late, redelivered=late, late_acks=late)

    assert tale.laws() == {}


def test_an_ack_that_was_sent_in_time_is_not_late() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.close("c", 50)
    tale.end(60, acked=1, deliveries=1, late_acks=1)

    assert tale.laws() == {"FIGURES": "late_acks is 1, and should be 0"}


def test_acks_that_were_out_when_a_connection_was_cut_may_have_been_sent_twice() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.fault("cut", "c", 42)
    tale.close("c", 50)
    tale.end(60, acked=1, deliveries=1, late_acks=1)

    assert tale.laws() == {}


def test_a_consumer_that_refuses_the_ack_of_what_it_holds_is_found() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256, answer=False)

    assert tale.laws(drained=False) == {"SETTLED": "m1: the ack of c was refused, and it held the message"}


def test_a_consumer_refuses_a_second_ack_without_asking() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.note("c", 40, 1, 256)
    tale.note("c", 42, 1, 256, answer=False)
    tale.close("c", 50)
    tale.end(60, acked=1, deliveries=1)

    assert tale.laws() == {}


@pytest.mark.parametrize("verb", ["note", "release"])
def test_an_ack_that_is_noted_after_the_delivery_was_settled_is_found(verb: str) -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.settle("c", 40, verb, 1, 256)
    tale.note("c", 50, 1, 256)

    assert "and had settled it before" in tale.laws(drained=False)["SETTLED"]


# -- what was fetched and not yielded ----------------------------------------------------------------------------------


def test_what_was_not_yielded_comes_back_uncounted_after_the_close() -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.note("c", 40, 1, 256)
    tale.close("c", 50)
    tale.poll("w", 60, Got(2, 512, redelivered=True), Got(3, 513))
    tale.ack("w", 70, 2, 512)
    tale.ack("w", 72, 3, 513)
    tale.end(80, acked=3, deliveries=4, redelivered=1)

    assert tale.laws() == {}


def test_what_was_not_yielded_and_comes_back_counted_after_the_close_is_found() -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.close("c", 50)
    tale.poll("w", 60, Got(2, 512, 2, redelivered=True))

    assert tale.laws(drained=False) == {"ATTEMPTS": "m2: its first delivery was attempt 2"}


def test_what_was_not_yielded_comes_back_counted_after_a_death() -> None:
    tale = begun(messages=2)
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.fault("kill", "c", 40)
    tale.died("c", 50)
    tale.poll("w", 60, Got(2, 512, 2, redelivered=True))

    assert tale.laws(drained=False) == {}


def test_of_one_death_more_than_one_attempt_is_found() -> None:
    tale = begun(messages=2)
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.fault("kill", "c", 40)
    tale.died("c", 50)
    tale.poll("w", 60, Got(2, 512, 3, redelivered=True))

    assert tale.laws(drained=False) == {"ATTEMPTS": "m2: its first delivery was attempt 3"}


@pytest.mark.parametrize("at", [40, 5000])
def test_an_attempt_that_nobody_saw_while_no_consumer_ends_is_found(at: float) -> None:
    """Before the last thing that it yielded, and while it goes on."""
    tale = begun()
    tale.take("c", 20, Got(1, 256))
    tale.poll("w", at, Got(2, 512, 2, redelivered=True))
    tale.take("c", 6000, Got(3, 768))
    tale.fault("kill", "c", 7000)
    tale.died("c", 7010)

    laws = tale.laws(drained=False)
    assert laws["ATTEMPTS"] == "m2: its first delivery was attempt 2"
    assert laws["ORDER"] == "m2: its first delivery was marked redelivered"


def test_more_hand_overs_than_it_may_hold_are_found() -> None:
    for unseen in (5, 6):
        tale = begun(prefetch=5, messages=1)
        tale.take("c", 30, Got(1, 256))
        tale.note("c", 40, 1, 256)
        tale.close("c", 50)
        tale.end(60, acked=1, deliveries=1 + unseen)
        assert ("FIGURES" in tale.laws()) == (unseen > 5)


def test_figures_of_hand_overs_go_back_when_a_poll_is_undone_and_at_no_other_time() -> None:
    for closes in (True, False):
        tale = begun(messages=1)
        tale.figures(15, ready=0, in_flight=1, deliveries=1)
        if closes:
            tale.close("c", 20)
        tale.figures(30, ready=1)
        if not closes:
            tale.take("c", 40, Got(1, 512))
            tale.close("c", 50)
        assert ("FIGURES" in tale.laws(drained=False)) != closes


def test_what_was_held_is_given_back_uncounted_by_the_close() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.close("c", 40)
    tale.poll("w", 50, Got(1, 512, 1, redelivered=True))
    assert tale.laws(drained=False) == {}

    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.close("c", 40)
    tale.poll("w", LEASE_MS + 50, Got(1, 512, 2, redelivered=True))
    assert tale.laws(drained=False) == {"ATTEMPTS": "m1: attempt 1 ended by close, and the next was attempt 2"}


def test_a_close_that_failed_may_have_given_back_or_not() -> None:
    for attempt in (1, 2):
        tale = begun(messages=1)
        tale.take("c", 30, Got(1, 256))
        tale.fault("cut", "c", 35)
        tale.close("c", 40, outcome="info: AccessRefused: x")
        tale.poll("w", 50, Got(1, 512, attempt, redelivered=True))
        assert tale.laws(drained=False) == {}


def test_a_take_that_fails_for_who_was_left_alone_is_found() -> None:
    tale = begun()
    tale.take("c", 30, outcome="info: AccessRefused: x")

    assert tale.laws(drained=False) == {"INNOCENT": "c was left alone, and its consume failed: AccessRefused: x"}


def test_who_was_stopped_in_a_handshake_may_be_refused_and_lose_what_it_held() -> None:
    for error in ("AccessRefused: no handshake within 5 s", "AccessRefused: x"):
        tale = begun(messages=1)
        tale.take("c", 20, Got(1, 256))
        tale.fault("stop", "c", 25)
        tale.fault("continue", "c", 6000)
        tale.take("c", 30, until=6010, outcome=f"fail: {error}")
        tale.poll("w", 6020, Got(1, 512, 2, redelivered=True))
        assert sorted(tale.laws(drained=False)) == ([] if "handshake" in error else ["HELD", "INNOCENT"])


def test_a_consumer_that_is_let_go_of_gives_back_what_it_had() -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.consume("c", 40)
    tale.poll("w", 60, Got(2, 512, redelivered=True))

    assert tale.laws(drained=False) == {}


# -- what is yielded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [255, 256])
def test_a_token_that_was_yielded_before_or_is_older_is_found(token: int) -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256))
    tale.take("c", 40, Got(1, token, 2, redelivered=True))

    text = f"m1 was yielded with token {token}, after token 256"
    assert tale.laws(drained=False)["TOKENS"] == text


def test_what_is_yielded_long_after_its_fetch_is_judged_by_the_time_of_that() -> None:
    """Its token is older than those that others got since, and its lease may be over."""
    tale = begun()
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.poll("w", 40, Got(3, 512))
    tale.take("c", LEASE_MS + 40, Got(2, 257), granted=20)
    tale.note("c", LEASE_MS + 50, 2, 257)
    tale.poll("w", LEASE_MS + 60, Got(2, 768, 2, redelivered=True))

    assert tale.laws(drained=False) == {}


def test_what_was_taken_back_and_is_yielded_as_if_it_had_just_come_is_found() -> None:
    tale = begun()
    tale.take("c", 30, Got(1, 256), granted=20)
    tale.poll("w", 40, Got(3, 512))
    tale.take("c", 50, Got(2, 257), granted=50)

    text = "m2 was handed over with token 257, after token 512 had been given out"
    assert tale.laws(drained=False)["TOKENS"] == text


@pytest.mark.parametrize("granted", [10, 19, 33])
def test_a_lease_from_before_the_last_fetch_or_from_after_the_take_is_found(granted: float) -> None:
    tale = begun()
    if granted > 12:
        tale.take("c", 20, Got(1, 256))
    tale.take("c", 30, Got(2, 512), granted=granted)

    assert "m2 was handed over with a lease to" in tale.laws(drained=False)["TIMES"]


def test_two_holders_at_a_time_are_found_whichever_way_the_second_reads() -> None:
    tale = begun(messages=1)
    tale.take("c", 30, Got(1, 256))
    tale.poll("w", 40, Got(1, 512, 2, redelivered=True))
    assert "c held it with token 256" in tale.laws(drained=False)["HELD"]

    tale = begun(messages=1)
    tale.poll("w", 20, Got(1, 256))
    tale.take("c", 40, Got(1, 512, 2, redelivered=True), granted=30)
    assert "w held it with token 256" in tale.laws(drained=False)["HELD"]


def test_what_comes_from_the_dead_is_fetched_alone_and_may_be_taken_with_others() -> None:
    for granted in (70, 71):
        tale = begun(messages=2)
        tale.poll("w", 20, Got(1, 256))
        tale.fault("kill", "w", 30)
        tale.died("w", 40)
        tale.take("c", 80, Got(1, 512, 2, redelivered=True), granted=70)
        tale.take("c", 90, Got(2, 513 if granted == 70 else 768), granted=granted)
        laws = tale.laws(drained=False)
        assert laws.get("ORDER", "") == (
            "m1: its holder had died, and it was handed over with 1 others" if granted == 70 else ""
        )


def test_the_order_within_one_fetch_is_judged_over_all_its_takes() -> None:
    tale = begun(messages=2)
    tale.take("c", 30, Got(2, 256), granted=20)
    tale.take("c", 40, Got(1, 257), granted=20)

    assert tale.laws(drained=False)["ORDER"] == "m1 came in one poll behind m2"


def test_a_message_of_low_priority_that_was_fetched_while_a_higher_one_was_ready_is_found() -> None:
    for granted in (12, 30):
        tale = Tale()
        tale.publish(1, 1)
        tale.consume("c", 5)
        tale.publish(2, 20, priority=3)
        tale.take("c", 40, Got(1, 256), granted=granted)
        tale.poll("w", 50, Got(2, 512, priority=3))
        ended(tale)
        assert ("ORDER" in tale.laws(drained=False)) == (granted == 30)


# -- waiting -----------------------------------------------------------------------------------------------------------


def waited(*, fetched: bool, timeout: float | None) -> dict[str, str]:
    """A take that ends with nothing while m2 is ready."""
    tale = Tale()
    tale.consume("c", 5)
    tale.publish(1, 10)
    tale.take("c", 20, Got(1, 256))
    if not fetched:
        tale.take("c", 30, timeout=0.01, until=45)
    tale.publish(2, 50)
    tale.take("c", 60, timeout=timeout, until=80)
    tale.poll("w", 90, Got(2, 512))
    ended(tale)
    return tale.laws(drained=False)


def test_a_consumer_that_waited_beside_a_message_that_was_ready_is_found() -> None:
    assert waited(fetched=False, timeout=0.01) == {
        "WAITING": "a poll of 0.020000 s ended with nothing while m2 was ready"
    }


def test_a_poll_from_before_may_have_ended_while_nobody_looked() -> None:
    assert waited(fetched=True, timeout=0.01) == {}


def test_a_consumer_that_holds_all_it_may_need_not_ask() -> None:
    assert waited(fetched=False, timeout=None) == {}
