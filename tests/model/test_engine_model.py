"""The broker in one process against the naive model: every verb, in any order, in injected time.

Every answer is compared exactly, and after every step so are all figures, all dead letters and the
time of the next event; the engine's own indices are checked against each other. MPBROKER_LONG=1
runs the long form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpbroker import (
    DeadLetter,
    Delivery,
    Message,
    MessageBroker,
    MessagePriority,
    QueueFull,
    SubscriptionAPI,
    SubscriptionConflict,
    SubscriptionStats,
    TopicExists,
    UnknownSubscription,
    UnknownTopic,
)
from mpbroker.engine import invariants
from mpbroker.settings import UNSET
from mpbroker.testing import FakeClock
from tests.model.broker_choices import (
    COUNTS,
    ERRORS,
    FILTERS,
    HEADERS,
    LIMITS,
    MEMBERS,
    NAMES,
    PRIORITIES,
    SECONDS,
    SETTINGS,
    TOPICS,
    WHICH,
)
from tests.model.naive import Copy, Full, NaiveBroker, NaiveSubscription, NaiveTopic, Rules

LONG: Final = bool(os.environ.get("MPBROKER_LONG"))


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.broker = MessageBroker(clock=self.clock, sleep=self.clock.sleep)
        self.model = NaiveBroker()
        self.handles: list[tuple[SubscriptionAPI, NaiveSubscription]] = []
        self.deliveries: list[tuple[Delivery, NaiveSubscription]] = []
        self.tokens: set[tuple[int, int]] = set()
        self.published: list[Message] = []
        self.payload = 0

    @property
    def now(self) -> float:
        return self.clock()

    # -- topics and subscriptions -----------------------------------------------------------------

    @initialize(given=SETTINGS)
    def begin(self, given: dict[str, Any]) -> None:
        self.create_topic("t", False)
        self.subscribe("t", "a", given)

    @rule(name=TOPICS, exist_ok=st.booleans())
    def create_topic(self, name: str, exist_ok: bool) -> None:
        if name in self.model.topics and not exist_ok:
            with pytest.raises(TopicExists):
                self.broker.create_topic(name)
            return
        self.broker.create_topic(name, exist_ok=exist_ok)
        self.model.topics.setdefault(name, NaiveTopic())

    @rule(name=TOPICS, really=st.sampled_from([False, False, False, True]))
    def delete_topic(self, name: str, really: bool) -> None:
        if name not in self.model.topics:
            with pytest.raises(UnknownTopic):
                self.broker.delete_topic(name)
        elif really:
            self.broker.delete_topic(name)
            self.model.delete_topic(name)

    @rule(topic=TOPICS, name=NAMES, given=SETTINGS)
    def subscribe(self, topic: str, name: str, given: dict[str, Any]) -> None:
        given = {key: value for key, value in given.items() if value is not UNSET}
        retry, limit = given.get("retry"), given.get("max_deliveries")
        if retry is not None and limit is not None and retry.max_attempts != limit:
            with pytest.raises(ValueError, match="max_deliveries"):
                self.broker.subscribe(topic, name, **given)
            return
        if topic not in self.model.topics:
            with pytest.raises(UnknownTopic):
                self.broker.subscribe(topic, name, **given)
            return
        wanted = {**given, "filter": FILTERS[given.get("filter")]}
        if "filter" not in given:
            del wanted["filter"]
        existing = self.model.topics[topic].subscriptions.get(name)
        if existing is None:
            if retry is not None:
                wanted["max_deliveries"] = retry.max_attempts
            subscription = NaiveSubscription(topic, name, Rules(**wanted))
            self.model.topics[topic].subscriptions[name] = subscription
            self.handles.append((self.broker.subscribe(topic, name, **given), subscription))
            return
        differs = [key for key in wanted if wanted[key] != getattr(existing.rules, key)]
        if differs:
            with pytest.raises(SubscriptionConflict) as caught:
                self.broker.subscribe(topic, name, **given)
            assert caught.value.args == (existing.subscription_id, caught.value.args[1])
            assert sorted(caught.value.args[1]) == sorted(differs)
            return
        same = self.broker.subscribe(topic, name, **given)
        assert any(handle is same and model is existing for handle, model in self.handles)
        assert self.broker.subscription(topic, name) is same

    @rule(topic=TOPICS, name=NAMES, really=st.sampled_from([False, False, True]))
    def unsubscribe(self, topic: str, name: str, really: bool) -> None:
        subscriptions = self.model.topics.get(topic, NaiveTopic()).subscriptions
        if name not in subscriptions:
            with pytest.raises(UnknownSubscription):
                self.broker.unsubscribe(topic, name)
            with pytest.raises(UnknownSubscription):
                self.broker.subscription(topic, name)
        elif really:
            self.broker.unsubscribe(topic, name)
            self.model.end(subscriptions[name])

    # -- publish ----------------------------------------------------------------------------------

    @rule(topic=TOPICS, headers=HEADERS, priority=PRIORITIES)
    def publish(self, topic: str, headers: dict[str, str], priority: MessagePriority) -> None:
        self._publish(topic, 1, headers, priority, many=False)

    @rule(
        topic=TOPICS,
        count=st.sampled_from([0, 1, 2, 3, 5, 5, 8, 300]),
        headers=HEADERS,
        priority=PRIORITIES,
    )
    def publish_many(self, topic: str, count: int, headers: dict[str, str], priority: MessagePriority) -> None:
        self._publish(topic, count, headers, priority, many=True)

    def _publish(self, topic: str, count: int, headers: dict[str, str], priority: MessagePriority, many: bool) -> None:
        payloads = [self.payload + index for index in range(count)]
        self.payload += count

        def call() -> list[Message]:
            if many:
                return self.broker.publish_many(topic, payloads, headers, priority=priority)
            return [self.broker.publish(topic, payloads[0], headers, priority=priority)]

        if topic not in self.model.topics:
            with pytest.raises(UnknownTopic):
                call()
            return
        try:
            sequences = self.model.publish(topic, payloads, headers, priority, self.now)
        except Full:
            with pytest.raises(QueueFull) as caught:
                call()
            assert caught.value.args[0] in [s.subscription_id for s in self._full(topic, count)]
            return
        messages = call()
        assert [message.sequence for message in messages] == sequences
        for message, payload in zip(messages, payloads, strict=True):
            assert (message.topic, message.payload) == (topic, payload)
            assert (message.headers, message.priority) == (headers, priority)
        self.published = [*self.published, *messages][-400:]

    def _full(self, topic: str, count: int) -> list[NaiveSubscription]:
        return [
            subscription
            for subscription in self.model.topics[topic].subscriptions.values()
            if subscription.refuses(count)
        ]

    @precondition(lambda self: self.handles and self.published)
    @rule(subscription=WHICH, message=WHICH)
    def offer(self, subscription: int, message: int) -> None:
        handle, model = self._handle(subscription)
        offered = self.published[message % len(self.published)]
        if offered.topic != model.topic:
            with pytest.raises(ValueError, match="topic"):
                handle.offer(offered)
        elif not model.ended:
            copy = Copy(offered.sequence, offered.priority, offered.payload, dict(offered.headers))
            if model.has(offered.sequence):
                assert handle.offer(offered) is False
            elif model.refuses(1) and model.verdict(copy.headers) is True:
                with pytest.raises(QueueFull):
                    handle.offer(offered)
            else:
                assert handle.offer(offered) is model.accept(copy, self.now)

    # -- hand over --------------------------------------------------------------------------------

    def _handle(self, which: int) -> tuple[SubscriptionAPI, NaiveSubscription]:
        """Mostly one of the newest."""
        recent = self.handles[-4:] if which % 5 else self.handles
        return recent[which % len(recent)]

    @precondition(lambda self: self.handles)
    @rule(which=WHICH, member=MEMBERS, count=COUNTS, say_now=st.booleans())
    def poll(self, which: int, member: str, count: int, say_now: bool) -> None:
        handle, model = self._handle(which)
        now = self.now if say_now else None
        if model.ended:
            with pytest.raises(UnknownSubscription):
                handle.poll(member, now, count)
            return
        taken = handle.poll(member, now, count)
        self._compare_deliveries(taken, model.poll(member, self.now, count), model)

    @precondition(lambda self: self.handles)
    @rule(which=WHICH, count=COUNTS)
    def poll_without_waiting_long(self, which: int, count: int) -> None:
        """A poll that could wait gives the same when there is something."""
        handle, model = self._handle(which)
        if model.ended:
            return
        assert handle.expire() == model.expire(self.now)
        if model.ready(self.now):
            taken = handle.poll("w", max_messages=count, timeout=None)
            self._compare_deliveries(taken, model.poll("w", self.now, count), model)

    def _compare_deliveries(self, taken: Iterable[Delivery], expected: list[Copy], model: NaiveSubscription) -> None:
        taken = list(taken)
        assert [d.message_id for d in taken] == [f"m{copy.sequence}" for copy in expected]
        for delivery, copy in zip(taken, expected, strict=True):
            assert delivery.attempt == copy.attempts
            assert delivery.deadline == copy.deadline
            assert delivery.member == copy.member
            assert (delivery.payload, delivery.headers) == (copy.payload, copy.headers)
            assert delivery.priority is copy.priority
            self._adopt(delivery, copy, model)
        redelivered = [copy.redelivered for copy in expected]
        assert [delivery.redelivered for delivery in taken] == redelivered

    def _adopt(self, delivery: Delivery, copy: Copy, model: NaiveSubscription) -> None:
        token = (id(model), delivery.token)
        assert token not in self.tokens, "a token was used again"
        self.tokens.add(token)
        copy.token = delivery.token
        self.deliveries.append((delivery, model))
        if len(self.deliveries) > 1200:
            del self.deliveries[:-600]

    # -- settle -----------------------------------------------------------------------------------

    def _delivery(self, which: int) -> tuple[Delivery, NaiveSubscription]:
        """Mostly one of the newest."""
        recent = self.deliveries[-8:] if which % 3 else self.deliveries
        return recent[which % len(recent)]

    def _handle_of(self, model: NaiveSubscription) -> SubscriptionAPI:
        return next(handle for handle, known in self.handles if known is model)

    @precondition(lambda self: self.deliveries)
    @rule(
        which=WHICH,
        verb=st.sampled_from(["ack", "nack", "release", "reject", "extend"]),
        by_token=st.booleans(),
        member=MEMBERS,
        seconds=st.none() | SECONDS,
        error=ERRORS,
    )
    def settle(
        self,
        which: int,
        verb: str,
        by_token: bool,
        member: str,
        seconds: float | None,
        error: str,
    ) -> None:
        delivery, model = self._delivery(which)
        sequence = delivery.message.sequence
        if by_token:
            copy = None if model.ended else model.by_token(delivery.token)
        else:
            copy = None if model.ended else model.by_id(sequence, member)
        arguments: dict[str, dict[str, Any]] = {
            "nack": {"delay": seconds, "error": error or None},
            "reject": {"error": error or None},
            "extend": {"seconds": seconds},
        }
        if by_token:
            answer = getattr(delivery, verb)(**arguments.get(verb, {}))
        else:
            by_id = getattr(self._handle_of(model), verb)
            answer = by_id(delivery.message_id, member, **arguments.get(verb, {}))
        now = self.now
        outcomes: dict[str, Callable[[], bool]] = {
            "ack": lambda: model.ack(copy),
            "nack": lambda: model.nack(copy, seconds, error, now),
            "release": lambda: model.release(copy),
            "reject": lambda: model.reject(copy, error, now),
            "extend": lambda: model.extend(copy, seconds, now),
        }
        assert answer is outcomes[verb]()
        if verb == "extend" and by_token and copy is not None:
            assert delivery.deadline == copy.deadline

    @precondition(lambda self: self.deliveries)
    @rule(which=WHICH, error=ERRORS)
    def retry(self, which: int, error: str) -> None:
        delivery, model = self._delivery(which)
        copy = None if model.ended else model.by_token(delivery.token)
        again = delivery.retry(error or None)
        if copy is not None and model.retry(copy, error, self.now):
            assert again is not None
            assert again.deadline >= delivery.deadline or again.deadline == copy.deadline
            copy.deadline = again.deadline
            self._compare_deliveries([again], [copy], model)
        else:
            assert again is None

    @precondition(lambda self: self.deliveries)
    @rule(
        which=WHICH,
        step=st.integers(1, 3),
        count=st.sampled_from([2, 3, 5, 150]),
        backwards=st.booleans(),
        member=MEMBERS,
    )
    def ack_many(self, which: int, step: int, count: int, backwards: bool, member: str) -> None:
        """Alternating ones, by id, some of them twice or not held."""
        _, model = self._delivery(which)
        handle = self._handle_of(model)
        mine = [d for d, known in self.deliveries if known is model]
        chosen = mine[-1 - which % 4 :: -step][:count]
        if not backwards:
            chosen.reverse()
        ids = [d.message_id for d in chosen] or ["m1"]
        ids[1:1] = ["nonsense", ids[-1], "m0", f"m{self.model.last + 1}"][: which % 5]
        answers = handle.ack_many(ids, member)
        expected = []
        for message_id in ids:
            number = message_id[1:]
            sequence = int(number) if number.isdecimal() else 0
            copy = None if model.ended else model.by_id(sequence, member)
            expected.append(model.ack(copy))
        assert answers == expected

    @precondition(lambda self: self.deliveries)
    @rule(
        which=WHICH,
        step=st.integers(1, 4),
        count=st.sampled_from([3, 20, 100]),
        verb=st.sampled_from(["ack", "nack", "release", "extend"]),
    )
    def settle_every_nth(self, which: int, step: int, count: int, verb: str) -> None:
        """Cuts what was handed over together into pieces."""
        for delivery, model in self.deliveries[-1 - which % min(9, len(self.deliveries)) :: -step][:count]:
            copy = None if model.ended else model.by_token(delivery.token)
            if verb == "ack":
                assert delivery.ack() is model.ack(copy)
            elif verb == "nack":
                assert delivery.nack(delay=1.0) is model.nack(copy, 1.0, "", self.now)
            elif verb == "release":
                assert delivery.release() is model.release(copy)
            else:
                assert delivery.extend(3.0) is model.extend(copy, 3.0, self.now)

    @precondition(lambda self: self.deliveries)
    @rule(which=WHICH, several=st.integers(1, 5), times=st.sampled_from([3, 100]))
    def keep_extending(self, which: int, several: int, times: int) -> None:
        """As workers with long tasks do; every old deadline is something to forget."""
        newest = self.deliveries[-1 - which % min(9, len(self.deliveries)) :: -1][:several]
        for time in range(times):
            delivery, model = newest[time % len(newest)]
            copy = None if model.ended else model.by_token(delivery.token)
            seconds = 1.0 + (time + which) % 7
            assert delivery.extend(seconds) is model.extend(copy, seconds, self.now)

    @precondition(lambda self: self.handles)
    @rule(which=WHICH, times=st.sampled_from([3, 100]), count=st.sampled_from([1, 2]))
    def keep_releasing(self, which: int, times: int, count: int) -> None:
        handle, model = self._handle(which)
        for _ in range(0 if model.ended else times):
            taken = handle.poll("w", max_messages=count)
            self._compare_deliveries(taken, model.poll("w", self.now, count), model)
            for delivery in taken:
                assert delivery.release() is model.release(model.by_token(delivery.token))

    # -- time -------------------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def time_passes_until_something_is_due(self) -> None:
        due = self.model.next_deadline(self.now)
        if due is not None and due > self.now:
            self.clock.advance(due - self.now)

    @precondition(lambda self: self.handles)
    @rule(which=WHICH, say_now=st.booleans())
    def expire(self, which: int, say_now: bool) -> None:
        handle, model = self._handle(which)
        if not model.ended:
            assert handle.expire(self.now if say_now else None) == model.expire(self.now)

    @rule(say_now=st.booleans())
    def expire_all(self, say_now: bool) -> None:
        ended = self.broker.expire(self.now if say_now else None)
        assert ended == sum(model.expire(self.now) for model in self.model.subscriptions())

    # -- dead letters -----------------------------------------------------------------------------

    @precondition(lambda self: self.handles)
    @rule(which=WHICH, some=st.none() | st.lists(WHICH, max_size=4), limit=LIMITS, purge=st.booleans())
    def redrive_or_purge(self, which: int, some: list[int] | None, limit: int | None, purge: bool) -> None:
        _, model = self._handle(which)
        act = self.broker.purge_dead_letters if purge else self.broker.redrive
        if model.ended:
            if model.name not in self._names(model.topic):
                with pytest.raises(UnknownSubscription):
                    act(model.subscription_id)
            return
        sequences = None
        if some is not None:
            known = [copy.sequence for copy in model.letters] or [1]
            sequences = [known[n % len(known)] if n % 4 else n for n in some]
        ids = None if sequences is None else [f"m{sequence}" for sequence in sequences]
        expected = model.purge if purge else model.redrive
        assert act(model.subscription_id, ids, limit=limit) == expected(sequences, limit)

    def _names(self, topic: str) -> Iterable[str]:
        return self.model.topics.get(topic, NaiveTopic()).subscriptions

    @rule(limit=LIMITS, offset=st.sampled_from([0, 1, 3, 50]))
    def page_of_dead_letters(self, limit: int | None, offset: int) -> None:
        everything = [
            (model.subscription_id, f"m{copy.sequence}")
            for model in self.model.subscriptions()
            for copy in model.letters
        ]
        page = self.broker.dead_letters(limit=limit, offset=offset)
        end = None if limit is None else offset + limit
        assert [(x.subscription_id, x.message.message_id) for x in page] == everything[offset:end]

    # -- after every step -------------------------------------------------------------------------

    @invariant()
    def indices_agree(self) -> None:
        invariants.check(self.broker._engine)

    @invariant()
    def figures_agree(self) -> None:
        assert self.broker.topics() == self.model.topic_stats()
        expected = self._expected()
        stats = self.broker.subscriptions()
        assert list(stats) == list(expected)
        for name in expected:
            assert stats[name] == expected[name], _differences(stats[name], expected[name])
        for handle, model in self.handles[-4:]:
            if not model.ended:
                assert handle.stats() == handle.stats(self.now) == expected[model.subscription_id]
                assert handle.wait_idle(0) is (not model.copies)

    def _expected(self) -> dict[str, SubscriptionStats]:
        return {s.subscription_id: s.stats(self.now) for s in self.model.subscriptions()}

    @invariant()
    def next_events_agree(self) -> None:
        assert self.broker.next_deadline() == self.model.next_deadline(self.now)

    @invariant()
    def dead_letters_agree(self) -> None:
        for model in self.model.subscriptions():
            if model.letters_changed:
                self._compare_letters(self.broker.dead_letters(model.subscription_id), model)
                model.letters_changed = False

    def _compare_letters(self, letters: list[DeadLetter], model: NaiveSubscription) -> None:
        # Those set aside at one moment have no order among them but the broker's.
        known = {copy.sequence: copy for copy in model.letters}
        assert sorted(letter.message.sequence for letter in letters) == sorted(known)
        ordered = [known[letter.message.sequence] for letter in letters]
        assert [c.dead_since for c in ordered] == [c.dead_since for c in model.letters]
        model.letters = ordered
        for letter, copy in zip(letters, ordered, strict=True):
            assert letter.subscription_id == model.subscription_id
            assert (letter.reason, letter.attempts) == (copy.reason, copy.attempts)
            assert (letter.message.payload, letter.message.headers) == (copy.payload, copy.headers)
            last_member = copy.history[-1][1] if copy.history else ""
            assert (letter.dead_since, letter.last_member) == (copy.dead_since, last_member)
            assert letter.error == copy.error if copy.error else True
            history = [
                (a.number, a.member, a.started, a.ended, a.outcome, a.error if error else "")
                for a, (*_, error) in zip(letter.history, copy.history, strict=True)
            ]
            assert history == copy.history

    # -- in the end -------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything that waits anywhere can still be had, once."""
        if self.broker.subscriptions() != self._expected():
            return  # it failed before, and that is the better story
        self.clock.advance(1000.0)
        for handle, model in self.handles:
            if not model.ended:
                for _ in range(5):
                    taken = handle.poll("last", max_messages=10_000)
                    self._compare_deliveries(taken, model.poll("last", self.now, 10_000), model)
                    for delivery in taken:
                        assert delivery.ack() is model.ack(model.by_token(delivery.token))
                    self.clock.advance(10.0)
                assert not model.copies
                assert handle.stats() == model.stats(self.now)
        invariants.check(self.broker._engine)
        self.broker.close()


def _differences(got: SubscriptionStats, expected: SubscriptionStats) -> str:
    names = [name for name in got.__slots__ if getattr(got, name) != getattr(expected, name)]
    return "; ".join(f"{n} is {getattr(got, n)}, not {getattr(expected, n)}" for n in names)


BrokerMachine.TestCase.settings = settings(
    max_examples=5000 if LONG else 150,
    stateful_step_count=100 if LONG else 40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
)

TestBroker = pytest.mark.timeout(3600 if LONG else 300)(BrokerMachine.TestCase)
