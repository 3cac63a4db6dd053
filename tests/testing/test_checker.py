"""The checker finds every way in which a run can break a law, and nothing in one that breaks none."""

from __future__ import annotations

import pytest

from mpbroker.testing.checker import Law, check
from mpbroker.testing.history import Done, Event, Subscribe
from tests.testing.telling import Got, Tale, letter


def test_no_histories_break_no_law() -> None:
    assert check([]).passed


def test_what_is_published_delivered_and_acked_breaks_no_law() -> None:
    tale = Tale()
    tale.publish(1, 10, 3)
    tale.poll("w1", 20, Got(1, 256), Got(2, 257))
    tale.poll("w2", 21, Got(3, 512))
    tale.ack("w1", 30, 1, 256)
    tale.ack("w1", 32, 2)
    tale.ack("w2", 31, 3, 512)
    tale.end(40, acked=3, deliveries=3)

    verdict = tale.verdict()
    assert verdict.report() == []
    assert (verdict.messages, verdict.copies, verdict.deliveries, verdict.acked) == (3, 3, 3, 3)


def test_a_life_with_every_turn_breaks_no_law() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256))
    tale.settle("w1", 30, "extend", 1, 256, deadline=40.030, seconds=40.0)
    tale.settle("w1", 40, "release", 1, 256)
    tale.poll("w2", 50, Got(1, 512, 1, redelivered=True))
    tale.settle("w2", 60, "nack", 1, 512, error="no")
    tale.ack("w1", 62, 1, 256, answer=False)
    tale.poll("w1", 70, Got(1, 768, 2, redelivered=True))
    tale.fault("kill", "w1", 80)
    tale.died("w1", 90)
    tale.poll("w2", 100, Got(1, 1024, 3, redelivered=True))
    tale.settle("w2", 110, "nack", 1, 1024, error="again")
    tale.redrive(120, [1])
    tale.poll("w2", 130, Got(1, 1280, 1, redelivered=True))
    tale.ack("w2", 140, 1, 1280)
    tale.end(150, acked=1, deliveries=5, redelivered=4, late_acks=1)

    assert tale.laws() == {}


def test_a_violation_is_told_with_the_life_of_the_message() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256))
    tale.poll("w2", 30, Got(1, 512, 2, redelivered=True))

    (violation, *_) = tale.verdict(drained=False).of(Law.HELD)
    assert str(violation).splitlines() == [
        "a message is held by one member at a time: m1: w1 held it with token 256 when it was handed to w2, token 512",
        "    0.010000 to 0.011000 publisher 1: publish t, message 0, priority 1",
        "    0.020000 to 0.021000 w1: handed to w1, attempt 1, token 256, until 30.020000",
        "    0.030000 to 0.031000 w2: handed to w2, attempt 2, redelivered, token 512, until 30.030000",
    ]


# -- lost, and invented ------------------------------------------------------------------------------------------------


def test_an_accepted_message_that_is_nowhere_is_lost() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(1, 256))
    tale.ack("w1", 30, 1, 256)
    tale.end(40, acked=1, deliveries=1, accepted=1)

    laws = tale.laws()
    assert laws["KEPT"] == "1 accepted messages are nowhere; not settled are m2"
    assert laws["FIGURES"] == "accepted is 1, and should be 2"


def test_a_message_given_back_and_never_seen_again_is_lost() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256))
    tale.settle("w1", 30, "release", 1, 256)
    tale.end(40, accepted=1, acked=1, deliveries=1)

    assert "m1" in tale.laws()["KEPT"]


def test_what_still_waits_is_not_lost_but_not_done() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.end(40, ready=1)

    assert tale.laws() == {"ENDED": "in the end there are 1 ready, 0 delayed, 0 in_flight: m1"}
    assert tale.laws(drained=False) == {}


def test_a_publish_of_unknown_outcome_may_or_may_not_be_there() -> None:
    for delivered in (True, False):
        tale = Tale()
        tale.publish(1, 10, 2, outcome="info: BrokerGone: x")
        tale.fault("cut", "publisher 1", 9)
        if delivered:
            tale.poll("w1", 20, Got(1, 256), Got(2, 257))
            tale.ack("w1", 30, 1)
            tale.ack("w1", 32, 2)
        tale.end(40, acked=2 * delivered, deliveries=2 * delivered)
        assert tale.laws() == {}


def test_a_publish_of_unknown_outcome_is_there_whole_or_not_at_all() -> None:
    tale = Tale()
    tale.publish(1, 10, 2, outcome="info: BrokerGone: x")
    tale.fault("cut", "publisher 1", 9)
    tale.poll("w1", 20, Got(2, 256))
    tale.ack("w1", 30, 2)
    tale.end(40, acked=1, deliveries=1)

    assert tale.laws()["KEPT"] == "1 accepted messages are nowhere; not settled are m1"


def test_what_nobody_published_is_found() -> None:
    tale = Tale()
    tale.poll("w1", 20, Got(7, 256))

    text = "m7 says that it is message 6 of publisher 1, which was never published"
    assert tale.laws(drained=False)["GENUINE"] == text


def test_a_publish_that_was_refused_and_is_there_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10, outcome="fail: QueueFull: x")
    tale.poll("w1", 20, Got(1, 256))

    assert "never published" in tale.laws(drained=False)["GENUINE"]


def test_a_message_that_is_there_twice_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256), Got(2, 257, number=0))

    assert tale.laws(drained=False)["GENUINE"] == "message 0 of publisher 1 is there twice, as m1 and as m2"


@pytest.mark.parametrize("got", [Got(1, 256, number=1), Got(1, 256, priority=2), Got(1, 256, publisher=2)])
def test_a_message_that_came_otherwise_than_published_is_found(got: Got) -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, got)

    assert tale.laws(drained=False)["GENUINE"].startswith("m1 was published as message 0 of publisher 1")


def test_other_headers_than_published_are_found() -> None:
    tale = Tale()
    tale.publish(1, 10, headers={"a": "1"})
    tale.poll("w1", 20, Got(1, 256), headers={"a": "2"})

    assert "and came as" in tale.laws(drained=False)["GENUINE"]


def test_a_message_that_the_filter_does_not_accept_is_found() -> None:
    tale = Tale(filter='headers.a = "1"')
    tale.publish(1, 10, headers={"a": "2"})
    tale.poll("w1", 20, Got(1, 256), headers={"a": "2"})
    tale.ack("w1", 30, 1)

    text = "m1 was handed over, and is not for this subscription"
    assert tale.laws(drained=False)["FILTERED"] == text


def test_a_message_from_before_a_subscription_is_not_for_it() -> None:
    tale = Tale()
    tale.clients.clear()
    tale.publish(1, 10)
    tale.subscribe("s", 20)
    tale.poll("w1", 30, Got(1, 256))

    assert "FILTERED" in tale.laws(drained=False)


# -- ids and tokens ----------------------------------------------------------------------------------------------------


def test_an_id_given_twice_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10, 3)
    tale.publish(3, 20, number=3)

    assert tale.laws(drained=False)["IDS"].startswith("message 3 of publisher 1 and messages 0 to 2")


def test_ids_that_go_back_are_found() -> None:
    tale = Tale()
    tale.publish(5, 10, number=0)
    tale.publish(2, 20, number=1)

    assert tale.laws(drained=False)["IDS"] == "message 1 of publisher 1 got m2, after m5 had been given out"


def test_ids_of_calls_at_the_same_time_may_be_in_any_order() -> None:
    tale = Tale()
    tale.publish(5, 10, number=0, until=30)
    tale.publish(2, 15, number=0, until=25, publisher=2)

    assert tale.laws(drained=False) == {}


def test_tokens_that_go_back_are_found() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(1, 512))
    tale.poll("w2", 30, Got(2, 256))

    laws = tale.laws(drained=False)
    assert laws["TOKENS"] == "m2 was handed over with token 256, after token 512 had been given out"


def test_a_token_given_twice_at_the_same_time_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(1, 256), until=25)
    tale.poll("w2", 21, Got(2, 256), until=24)

    assert tale.laws(drained=False)["TOKENS"] == "m2 and m1 were both handed over with token 256"


# -- one holder --------------------------------------------------------------------------------------------------------


def held_by_w1(limit: int = 3, retry: tuple[int, float, float, float] | None = None) -> Tale:
    tale = Tale(limit=limit, retry=retry)
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256))
    return tale


def test_a_lease_that_ended_gives_the_message_to_another() -> None:
    tale = held_by_w1()
    tale.poll("w2", 30_020, Got(1, 512, 2, redelivered=True))

    assert tale.laws(drained=False) == {}


def test_a_lease_that_was_extended_holds_the_message() -> None:
    tale = held_by_w1()
    tale.settle("w1", 10_000, "extend", 1, 256, deadline=40.0)
    tale.poll("w2", 30_020, Got(1, 512, 2, redelivered=True))

    assert "HELD" in tale.laws(drained=False)


def test_the_death_of_the_holder_gives_the_message_to_another() -> None:
    tale = held_by_w1()
    tale.fault("kill", "w1", 25)
    tale.poll("w2", 30, Got(1, 512, 2, redelivered=True))

    assert tale.laws(drained=False) == {}


def test_a_death_after_the_next_hand_over_is_no_excuse() -> None:
    tale = held_by_w1()
    tale.poll("w2", 30, Got(1, 512, 2, redelivered=True))
    tale.fault("kill", "w1", 35)

    assert "HELD" in tale.laws(drained=False)


def test_what_was_acked_does_not_come_again() -> None:
    tale = held_by_w1()
    tale.ack("w1", 30, 1, 256)
    tale.poll("w2", 40_000, Got(1, 512, 2, redelivered=True))

    assert tale.laws(drained=False)["HELD"] == "m1: w1 acked it, and it was handed to w2 after that"


def test_a_poll_whose_answer_was_read_late_is_judged_by_when_it_was_granted() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256), until=60_000)
    tale.poll("w2", 30_021, Got(1, 512, 2, redelivered=True))
    tale.ack("w2", 30_030, 1, 512)
    tale.ack("w1", 60_010, 1, 256, answer=False)
    tale.end(60_020, acked=1, deliveries=2, redelivered=1, late_acks=1)

    assert tale.laws() == {}


# -- settling ----------------------------------------------------------------------------------------------------------


def test_two_outcomes_of_one_delivery_are_found() -> None:
    tale = held_by_w1()
    tale.ack("w1", 30, 1, 256)
    tale.settle("w1", 40, "nack", 1, 256)

    assert tale.laws(drained=False)["SETTLED"].startswith("m1: one delivery was settled more than once")


def test_an_ack_by_somebody_else_must_not_succeed() -> None:
    tale = held_by_w1()
    tale.ack("w2", 30, 1)

    assert tale.laws(drained=False)["SETTLED"] == "m1: the ack of w2 was answered True, and it had no such delivery"


def test_an_ack_of_an_older_delivery_must_not_succeed() -> None:
    tale = held_by_w1()
    tale.poll("w1", 30_030, Got(1, 512, 2, redelivered=True))
    tale.ack("w1", 30_040, 1, 256)

    laws = tale.laws(drained=False)
    assert laws["SETTLED"] == "m1: the ack of w1 succeeded after the message was handed to another"


def test_the_holder_must_not_be_refused() -> None:
    tale = held_by_w1()
    tale.ack("w1", 30, 1, 256, answer=False)

    assert tale.laws(drained=False)["SETTLED"] == "m1: the ack of w1 was refused, and it held the message"


def test_whoever_lost_the_message_may_be_refused() -> None:
    tale = held_by_w1()
    tale.ack("w1", 30_020, 1, 256, answer=False)

    assert tale.laws(drained=False) == {}


def test_an_ack_of_unknown_outcome_may_have_been_one() -> None:
    tale = held_by_w1()
    tale.fault("cut", "w1", 25)
    tale.settle("w1", 30, "ack", 1, 256, outcome="info: BrokerGone: x")
    tale.end(60, acked=1, deliveries=1)
    assert tale.laws() == {}

    tale.poll("w2", 30_020, Got(1, 512, 2, redelivered=True))
    tale.ack("w2", 30_030, 1)
    tale.end(30_040, acked=1, deliveries=2, redelivered=1)
    assert tale.laws() == {}


# -- order, attempts and times -----------------------------------------------------------------------------------------


def test_first_deliveries_out_of_order_are_found() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(2, 256))
    tale.poll("w2", 30, Got(1, 512))

    text = "m1 was handed over for the first time after m2, which is newer"
    assert tale.laws(drained=False)["ORDER"] == text


def test_a_poll_in_the_wrong_order_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(2, 256), Got(1, 257))

    assert tale.laws(drained=False)["ORDER"] == "m1 came in one poll behind m2"


def test_a_lower_priority_while_a_higher_one_is_ready_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.publish(2, 12, priority=3)
    tale.poll("w1", 20, Got(1, 256))
    tale.poll("w1", 30, Got(2, 512, priority=3))

    assert tale.laws(drained=False)["ORDER"].startswith("a message of priority 1 was handed over while m2, of 3")


def test_a_second_delivery_that_is_not_marked_is_found() -> None:
    tale = held_by_w1()
    tale.settle("w1", 30, "nack", 1, 256)
    tale.poll("w2", 40, Got(1, 512, 2))

    assert tale.laws(drained=False)["ORDER"] == "m1: a second delivery was not marked redelivered"


@pytest.mark.parametrize(("verb", "attempt"), [("nack", 1), ("nack", 3), ("release", 2)])
def test_attempts_that_are_counted_wrong_are_found(verb: str, attempt: int) -> None:
    tale = held_by_w1()
    tale.settle("w1", 30, verb, 1, 256)
    tale.poll("w2", 40, Got(1, 512, attempt, redelivered=True))

    assert tale.laws(drained=False)["ATTEMPTS"].startswith(f"m1: attempt 1 ended by {verb}, and the next was attempt")


def test_a_poll_that_died_unrecorded_explains_a_missing_attempt() -> None:
    for struck in (True, False):
        tale = Tale()
        tale.publish(1, 10)
        if struck:
            tale.poll("w1", 20, outcome="never")
            tale.fault("kill", "w1", 30)
            tale.died("w1", 40)
        tale.poll("w2", 50, Got(1, 512, 2, redelivered=True))
        assert ("ATTEMPTS" in tale.laws(drained=False)) is not struck


def test_an_attempt_beyond_the_limit_is_found() -> None:
    tale = held_by_w1(limit=1)
    tale.settle("w1", 30, "nack", 1, 256)
    tale.poll("w2", 40, Got(1, 512, 2, redelivered=True))

    laws = tale.laws(drained=False)
    assert laws["ATTEMPTS"] == "m1: it was handed over as attempt 2, and 1 is the limit"
    assert laws["DEAD"] == "m1: attempt 1 of 1 ended by nack, and it was handed out again"


def test_a_message_back_before_its_delay_is_found() -> None:
    for at, early in ((1_000, True), (1_031, False)):
        tale = held_by_w1(retry=(3, 1.0, 2.0, 8.0))
        tale.settle("w1", 30, "nack", 1, 256)
        tale.poll("w2", at, Got(1, 512, 2, redelivered=True))
        assert ("TIMES" in tale.laws(drained=False)) is early


def test_a_lease_of_another_length_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, Got(1, 256, lease_s=29.0))

    assert "TIMES" in tale.laws(drained=False)


def test_a_broker_whose_clock_lost_time_when_it_was_stopped_is_right_and_never_catches_up() -> None:
    for lost_s, catches_up in ((3.0, False), (0.5, True)):
        tale = Tale(stops=True)
        for number, lease_s in enumerate((30.0, 27.0, 30.0 - lost_s), 1):
            tale.publish(number, 10 * number)
            tale.poll("w1", 10 * number + 5, Got(number, 256 * number, lease_s=lease_s))
        assert ("TIMES" in tale.laws(drained=False)) is catches_up


def test_a_copy_that_is_redriven_after_an_answer_nobody_recorded_begins_anew() -> None:
    for is_lost in (True, False):
        tale = Tale(limit=2)
        tale.publish(1, 10)
        tale.poll("w1", 20, Got(1, 256))
        tale.settle("w1", 30, "nack", 1, 256)
        tale.poll("w1", 40, Got(1, 512, 2, redelivered=True))
        tale.settle("w1", 50, "release", 1, 512)
        if is_lost:
            tale.poll("w2", 60, outcome="never")
            tale.fault("kill", "w2", 70)
            tale.died("w2", 80)
        tale.redrive(100)
        tale.poll("w1", 120, Got(1, 1024, 1, redelivered=True))
        assert ("ATTEMPTS" in tale.laws(drained=False)) is not is_lost


def test_what_comes_back_from_the_dead_is_handed_over_alone() -> None:
    tale = Tale()
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(1, 256))
    tale.fault("kill", "w1", 25)
    tale.poll("w2", 30, Got(1, 512, 2, redelivered=True), Got(2, 768))

    assert tale.laws(drained=False)["ORDER"] == "m1: its holder had died, and it was handed over with 1 others"


def test_a_poll_that_ends_empty_while_a_message_is_ready_is_found() -> None:
    tale = Tale()
    tale.publish(1, 10)
    tale.poll("w1", 20, timeout=0.5, until=530)
    tale.poll("w2", 600, Got(1, 256))

    assert tale.laws(drained=False)["WAITING"] == "a poll of 0.510000 s ended with nothing while m1 was ready"


def test_a_poll_that_ends_empty_before_the_message_came_is_right() -> None:
    tale = Tale()
    tale.poll("w1", 20, timeout=0.5, until=530)
    tale.publish(1, 525)
    tale.poll("w2", 600, Got(1, 256))

    assert tale.laws(drained=False) == {}


@pytest.mark.parametrize(("verb", "seconds", "ready"), [("release", None, 31.2), ("nack", 0.2, 231.5)])
def test_a_poll_that_ends_empty_while_a_copy_is_back_is_found(verb: str, seconds: float | None, ready: float) -> None:
    for over in (ready - 2, ready + 2):
        tale = held_by_w1()
        tale.settle("w1", 30, verb, 1, 256, seconds=seconds)
        tale.poll("w2", over - 5, timeout=0.005, until=over + 3)
        tale.poll("w3", 400, Got(1, 512, 2 if verb == "nack" else 1, redelivered=True))

        laws = tale.laws(drained=False)
        assert ("WAITING" in laws) is (over > ready), laws


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_what_is_exhausted_or_rejected_must_be_a_dead_letter() -> None:
    tale = Tale(limit=1)
    tale.publish(1, 10, 2)
    tale.poll("w1", 20, Got(1, 256), Got(2, 257))
    tale.settle("w1", 30, "reject", 1, 256, error="bad")
    tale.settle("w1", 40, "nack", 2, 257, error="no")
    tale.end(50, letter(1, "rejected", 1, "bad"), letter(2, attempts=1, error="no"), deliveries=2)
    assert tale.laws() == {}

    tale.end(60, letter(1, "rejected", 1, "bad"), deliveries=2, dropped=0, accepted=1)
    assert tale.laws()["DEAD"] == "m2 ended by nack, and is no dead letter"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (letter(1, "retries_exhausted", 1, "bad"), "it was rejected, and its dead letter says retries_exhausted"),
        (letter(1, "rejected", 1, "good"), "its dead letter says 'good', and it ended with 'bad'"),
        (letter(1, "rejected", 2, "bad"), "it is a dead letter of 2 attempts, and its last one was 1"),
    ],
)
def test_a_dead_letter_with_the_wrong_cause_is_found(wrong: object, said: str) -> None:
    tale = held_by_w1(limit=1)
    tale.settle("w1", 30, "reject", 1, 256, error="bad")
    tale.end(50, wrong, deliveries=1)  # type: ignore[arg-type]

    assert tale.laws()["DEAD"] == f"m1: {said}"


def test_a_dead_letter_twice_and_one_of_an_acked_message_are_found() -> None:
    tale = held_by_w1()
    tale.ack("w1", 30, 1, 256)
    tale.end(50, letter(1), letter(1), acked=1, deliveries=1)

    texts = [each.text for each in tale.verdict().of(Law.DEAD)]
    assert texts == ["m1 is a dead letter twice", "m1 was acked, and is a dead letter"]


# -- figures, ends and innocents ---------------------------------------------------------------------------------------


def test_figures_that_do_not_add_up_are_found() -> None:
    tale = Tale()
    tale.figures(10, accepted=2, ready=1)
    tale.figures(20, ready=1, backlog=2)

    texts = [each.text for each in tale.verdict(drained=False).of(Law.FIGURES)]
    assert "accepted is 2, and the places hold 1" in texts
    assert "backlog is 2, of 1 ready and 0 delayed" in texts
    assert "accepted went from 2 back to 1" in texts


@pytest.mark.parametrize("name", ["acked", "deliveries", "redelivered", "late_acks"])
def test_a_figure_that_disagrees_with_the_clients_is_found(name: str) -> None:
    tale = held_by_w1()
    tale.ack("w1", 30, 1, 256)
    tale.end(50, **({"acked": 1, "deliveries": 1} | {name: 2}))

    assert any(each.text.startswith(f"{name} is 2") for each in tale.verdict().of(Law.FIGURES))


def test_a_call_that_is_never_answered_is_found() -> None:
    tale = Tale()
    tale.poll("w1", 20, outcome="never")

    assert tale.laws(drained=False) == {"ENDED": "a poll of w1 was never answered"}


def test_a_call_of_a_killed_client_need_not_be_answered() -> None:
    tale = Tale()
    tale.poll("w1", 20, outcome="never")
    tale.fault("kill", "w1", 30)

    assert tale.laws(drained=False) == {}


def test_a_failed_call_of_a_client_that_nobody_struck_is_found() -> None:
    tale = Tale()
    tale.fault("kill", "w2", 10)
    tale.poll("w1", 20, outcome="info: ProtocolViolation: x")

    text = "w1 was left alone, and its poll failed: ProtocolViolation: x"
    assert tale.laws(drained=False) == {"INNOCENT": text}


@pytest.mark.parametrize("error", ["QueueFull", "BrokerFull"])
@pytest.mark.parametrize(("overflow", "laws"), [("reject", set()), ("wait", set()), ("dead_letter", {"INNOCENT"})])
def test_a_publish_may_be_refused_for_want_of_room_where_something_refuses(
    error: str, overflow: str, laws: set[str]
) -> None:
    tale = Tale()
    tale.call("chief", 5, Subscribe("t", "r", 30.0, 3, None, 10, overflow, None), Done())
    tale.publish(1, 10, outcome=f"fail: {error}: x")

    assert set(tale.laws(drained=False)) == laws


def test_calls_on_a_deleted_subscription_may_fail() -> None:
    tale = Tale()
    tale.poll("w1", 20, outcome="fail: UnknownSubscription: x", until=40)
    tale.unsubscribe(30)

    assert tale.laws(drained=False) == {}


def test_the_picture_of_a_subscription_before_its_end_is_judged() -> None:
    tale = held_by_w1()
    tale.end(50, in_flight=1, deliveries=1)
    tale.unsubscribe(60)

    assert set(tale.laws()) == {"ENDED"}


def test_what_a_deleted_subscription_held_is_not_lost() -> None:
    tale = held_by_w1()
    tale.unsubscribe(60)

    assert tale.laws() == {}


def test_many_violations_are_counted_and_the_first_named() -> None:
    tale = Tale()
    for number in range(50):
        tale.poll("w1", 10 + 2 * number, Got(1000 + number, 256 * (number + 1)))

    verdict = tale.verdict(drained=False)
    assert verdict.by_law[Law.GENUINE] == 50
    assert len(verdict.of(Law.GENUINE)) == 20
    assert verdict.report()[-1] == "nothing is delivered but what was published, exactly so: 30 more violations"


def test_histories_of_an_unknown_subscription_are_refused() -> None:
    tale = Tale()
    tale.clients.clear()
    tale.poll("w1", 10)
    histories: list[list[Event]] = list(tale.clients.values())

    with pytest.raises(ValueError, match="how 't/s' was subscribed"):
        check(histories)
