"""Client processes that poll, wait, settle, are interrupted, close and die, against a naive model.

After every step: each call that the model says is answered has exactly that answer, once, and each other one waits;
the copies are where the model has them; the next time that something is due is exactly the model's; no copy is held by
a process that is gone. MPBROKER_LONG=1 runs many more and longer examples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Final, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpbroker.process import frames, payloads
from tests.model.sessions_model import Call, Client, Copy, Model, Sub
from tests.process.driver import Broker, Connection, Process, subscribe, tokens

T = TypeVar("T")

LONG: Final = bool(os.environ.get("MPBROKER_LONG"))

NAMES = ("a", "b", "c")
MEMBERS = ("w1", "w2")
STEPS = (0.0, 0.25, 1.0, 1.5, 4.0, 10.0)
timeouts = st.sampled_from([0.0, 1.0, 2.5, math.inf, math.inf])


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.model = Model(self.broker.now)
        self.processes: dict[Client, Process] = {}
        self.connections: dict[Call, Connection] = {}
        self.numbers: dict[Sub, int] = {}
        self.owners: dict[Client, int] = {}
        # Of each hand-over: its token, the copy, and which hand-over of that copy it was.
        self.tokens: dict[Sub, dict[int, tuple[Copy, int]]] = {}

    @initialize()
    def begin(self) -> None:
        setup = self.broker.call()
        setup.ask(frames.CreateTopic("t", False), frames.Done)
        self.setup = setup
        for _ in range(3):
            self.new_process()
        self.make(NAMES[0], 4.0, 3, 0.0)
        self.make(NAMES[1], 1.0, 3, 1.5)

    # -- drawing ------------------------------------------------------------------------------------------------------

    def free_calls(self) -> list[Call]:
        """Connections on which a call may go out."""
        return [
            call
            for client in self.model.clients
            for call in client.calls
            if call.waits is None and call.expected is None
        ]

    def call(self, data: st.DataObject) -> Call:
        return one_of(data, self.free_calls())

    def sub(self, data: st.DataObject) -> Sub:
        return one_of(data, list(self.model.subs.values()))

    def leaver(self, data: st.DataObject) -> Client:
        """Most ends that matter are of processes that hold something."""
        held = [copy.holder for sub in self.model.subs.values() for copy in sub.at("held")]
        holders = [client for client in self.model.clients if client in held]
        return one_of(data, [*self.model.clients, *holders, *holders])

    def ready(self) -> bool:
        return bool(self.model.subs) and bool(self.free_calls())

    def token(self, data: st.DataObject, sub: Sub) -> tuple[int, Copy | None]:
        """A token that was given once, and its copy while that hand-over holds it."""
        known = self.tokens[sub]
        if not known:
            return 0, None
        # Of the last ones some are held still.
        token = one_of(data, list(known)[-12:])
        copy, lease = known[token]
        return token, copy if copy.place == "held" and copy.lease == lease else None

    def send(self, call: Call, request: frames.Frame) -> None:
        self.connections[call].send(request)

    def settle(self, call: Call, request: frames.Frame, answer: object) -> None:
        """A request that never waits: its answer is taken at once."""
        connection = self.connections[call]
        connection.send(request)
        assert told(connection.take()) == answer
        connection.answered += 1

    # -- processes and connections ------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.clients) < 4)
    @rule()
    def new_process(self) -> None:
        client, process = Client(), self.broker.process()
        self.model.clients.append(client)
        self.processes[client] = process
        self.owners[client] = self.broker.sessions._desk.sessions[process.session].owner
        for _ in range(2):
            self.connect(client)

    def connect(self, client: Client, *, replaces: int = 0, answered: int = -1) -> None:
        call = Call(client)
        client.calls.append(call)
        process = self.processes[client]
        self.connections[call] = process.call(replaces=replaces, answered=answered)

    @precondition(lambda self: self.model.clients)
    @rule(data=st.data())
    def another_connection(self, data: st.DataObject) -> None:
        client = one_of(data, self.model.clients)
        if len(client.calls) < 4:
            self.connect(client)

    @precondition(lambda self: any(client.calls for client in self.model.clients))
    @rule(data=st.data(), unsent=st.booleans())
    def connection_ends(self, data: st.DataObject, unsent: bool) -> None:
        call = one_of(data, [call for client in self.model.clients for call in client.calls])
        self.close(call, unsent=unsent and call.expected is not None)

    def close(self, call: Call, *, unsent: bool) -> None:
        self.model.close(call)
        if unsent:
            self.model.undo(call)
        self.connections[call].close(unsent=unsent)

    @precondition(lambda self: any(client.calls for client in self.model.clients))
    @rule(
        data=st.data(),
        order=st.sampled_from(["no close", "close first", "close later"]),
        is_exact=st.booleans(),
        stays_away=st.booleans(),
    )
    def call_is_interrupted(self, data: st.DataObject, order: str, is_exact: bool, stays_away: bool) -> None:
        """It waits, its answer is on its way, or it was never read."""
        call = one_of(data, [call for client in self.model.clients for call in client.calls])
        self.interrupt(call, order, is_exact, stays_away)

    def interrupt(self, call: Call, order: str, is_exact: bool, stays_away: bool) -> None:
        connection, client = self.connections[call], call.client
        was_out = call.waits is not None or call.expected is not None
        self.model.close(call)
        if order == "close first":
            connection.close()
            self.compare()
            if stays_away:
                # Something else happens before the process comes back to it.
                self.broker.now += 0.5
                self.model.now += 0.5
                self.tick()
        if call.expected is not None:
            self.model.undo(call)
        answered = connection.answered if is_exact or not was_out else -1
        self.connect(client, replaces=connection.number, answered=answered)
        assert connection.is_closed
        if order == "close later":
            connection.close()

    @precondition(lambda self: len(self.model.clients) > 1)
    @rule(data=st.data(), signs=st.permutations(["presence", "pidfd"]), both=st.booleans())
    def process_dies(self, data: st.DataObject, signs: list[str], both: bool) -> None:
        self.dies(self.leaver(data), signs if both else signs[:1])

    def dies(self, client: Client, signs: list[str]) -> None:
        process = self.processes[client]
        self.model.end(client, died=True)
        for sign in signs:
            if sign == "presence":
                process.presence.close()
            else:
                process.die("signal 9 (SIGKILL)")

    @precondition(lambda self: len(self.model.clients) > 1)
    @rule(data=st.data())
    def process_says_goodbye(self, data: st.DataObject) -> None:
        self.leaves(self.leaver(data))

    def leaves(self, client: Client) -> None:
        self.model.end(client, died=False)
        self.processes[client].goodbye()

    # -- subscriptions ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.subs) < len(NAMES))
    @rule(
        ack_timeout=st.sampled_from([1.0, 4.0]),
        deliveries=st.integers(1, 4),
        delay=st.sampled_from([0.0, 1.5]),
    )
    def subscribe(self, ack_timeout: float, deliveries: int, delay: float) -> None:
        self.make(next(name for name in NAMES if name not in self.model.subs), ack_timeout, deliveries, delay)

    def make(self, name: str, ack_timeout: float, deliveries: int, delay: float) -> None:
        sub = Sub(name, ack_timeout, deliveries, delay)
        retry = frames.Retry(deliveries, delay, 1.0, 30.0) if delay else None
        request = subscribe("t", name, ack_timeout=ack_timeout, max_deliveries=deliveries, retry=retry)
        self.numbers[sub] = self.setup.ask(request, frames.Subscribed).number
        self.model.subs[name] = sub
        self.tokens[sub] = {}

    @precondition(lambda self: len(self.model.subs) > 1)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        name = self.sub(data).name
        self.model.delete(name)
        self.setup.ask(frames.Unsubscribe("t", name), frames.Done)

    # -- publish and poll ---------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), priority=st.sampled_from([1, 1, 3]))
    def publish(self, count: int, priority: int) -> None:
        self.model.publish([priority] * count)
        self.setup.publish("t", *range(count), priority=priority)

    @precondition(ready)
    @rule(data=st.data(), count=st.sampled_from([1, 2, 3, 100]), timeout=timeouts, as_dispatcher=st.booleans())
    def poll(self, data: st.DataObject, count: int, timeout: float, as_dispatcher: bool) -> None:
        call, sub = self.call(data), self.sub(data)
        member = data.draw(st.sampled_from(MEMBERS))
        if as_dispatcher and sub.dispatchers:
            member = f"$dispatcher-{data.draw(st.integers(max(1, sub.dispatchers - 1), sub.dispatchers))}"
        self.ask(call, sub, member, count, timeout)

    def ask(self, call: Call, sub: Sub, member: str, count: int, timeout: float) -> None:
        self.model.poll(call, sub, member, count, timeout)
        wire = None if timeout == math.inf else timeout
        self.send(call, frames.Poll(self.numbers[sub], member, None, count, wire))

    @precondition(lambda self: len({call.client for call in self.free_calls()}) > 1 and self.ready())
    @rule(
        data=st.data(),
        count=st.integers(1, 4),
        timeout=st.sampled_from([1.0, math.inf]),
        then=st.sampled_from(["", "", "dies", "leaves", "interrupted", "closed unread", "late", "late tick"]),
    )
    def one_holds_everything_and_another_waits(
        self, data: st.DataObject, count: int, timeout: float, then: str
    ) -> None:
        """Where most of what can go wrong begins; chance alone comes here too seldom."""
        sub, holder = self.sub(data), self.call(data)
        waiter = next(call for call in self.free_calls() if call.client is not holder.client)
        if sub.reader is not None:
            return
        self.model.publish([1] * count)
        self.setup.publish("t", *range(count))
        self.compare()
        self.ask(holder, sub, MEMBERS[0], 100, 0.0)
        self.compare()
        self.ask(waiter, sub, MEMBERS[1], 100, timeout)
        self.compare()
        match then:
            case "dies":
                self.dies(holder.client, ["pidfd"])
            case "leaves":
                self.leaves(holder.client)
            case "interrupted":
                self.interrupt(holder, "no close", is_exact=True, stays_away=False)
            case "closed unread":
                self.close(holder, unsent=True)
            case "late tick":
                self.the_loop_is_late(10.0)
                self.tick()
            case "late" if self.free_calls():
                self.the_loop_is_late(10.0)
                self.ask(self.free_calls()[0], sub, MEMBERS[0], 1, 0.0)

    @precondition(lambda self: any(call.expected is not None for c in self.model.clients for call in c.calls))
    @rule(data=st.data())
    def answer_is_taken(self, data: st.DataObject) -> None:
        calls = [call for client in self.model.clients for call in client.calls if call.expected is not None]
        call = one_of(data, calls)
        connection = self.connections[call]
        connection.take()
        connection.answered += 1
        call.expected = None

    @precondition(ready)
    @rule(data=st.data(), timeout=timeouts)
    def wait_idle(self, data: st.DataObject, timeout: float) -> None:
        call, sub = self.call(data), self.sub(data)
        self.model.wait_idle(call, sub, timeout)
        wire = None if timeout == math.inf else timeout
        self.send(call, frames.WaitIdle(self.numbers[sub], wire))

    # -- settle -------------------------------------------------------------------------------------------------------

    @precondition(ready)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "ack", "nack", "delay", "release", "reject", "extend"]))
    def settle_by_token(self, data: st.DataObject, how: str) -> None:
        call, sub = self.call(data), self.sub(data)
        token, copy = self.token(data, sub)
        number, held = self.numbers[sub], copy is not None
        self.model.begin(call)
        answer: object = [held]
        request: frames.Frame
        match how:
            case "ack":
                request = frames.AckTokens(number, [token, token])
                answer = [held, False]
                if copy is not None:
                    copy.place = "acked"
            case "nack" | "delay":
                delay = 2.0 if how == "delay" else None
                request = frames.Nack(number, token, None, delay, "no", None)
                if copy is not None:
                    self.model.fail(sub, copy, sub.delay if delay is None else delay)
            case "release":
                request = frames.Release(number, token, None)
                if copy is not None:
                    self.model.give_back(copy, seen=True)
            case "reject":
                request = frames.Reject(number, token, None, "bad")
                if copy is not None:
                    copy.attempts += 1
                    copy.place = "dead"
            case _:
                request = frames.Extend(number, token, None, 3.0, None)
                if copy is not None and copy.deadline != math.inf:
                    copy.deadline = self.model.now + 3.0
                answer = copy.deadline if copy is not None else None
        self.model.serve(sub)
        self.settle(call, request, answer)

    @precondition(ready)
    @rule(data=st.data(), size=st.integers(1, 4), is_release=st.booleans())
    def settle_a_range(self, data: st.DataObject, size: int, is_release: bool) -> None:
        call, sub = self.call(data), self.sub(data)
        first, _ = self.token(data, sub)
        last = min(first + size - 1, first | 255)
        self.model.begin(call)
        count = 0
        for token in range(first, last + 1):
            copy, lease = self.tokens[sub].get(token, (None, None))
            if copy is not None and copy.place == "held" and copy.lease == lease:
                count += 1
                if is_release:
                    self.model.give_back(copy, seen=True)
                else:
                    copy.place = "acked"
        self.model.serve(sub)
        kind = frames.ReleaseRanges if is_release else frames.AckRanges
        self.settle(call, kind(self.numbers[sub], [first, last]), count)

    @precondition(ready)
    @rule(data=st.data(), member=st.sampled_from(MEMBERS))
    def ack_by_member(self, data: st.DataObject, member: str) -> None:
        call, sub = self.call(data), self.sub(data)
        sequences = data.draw(st.lists(st.integers(1, self.model.published + 1), max_size=4, unique=True))
        self.model.begin(call)
        answers = []
        for sequence in sequences:
            held = [copy for copy in sub.at("held") if (copy.sequence, copy.member) == (sequence, member)]
            answers.append(bool(held))
            for copy in held:
                copy.place = "acked"
        self.model.serve(sub)
        self.settle(call, frames.Ack(self.numbers[sub], member, sequences), answers)

    @precondition(ready)
    @rule(data=st.data())
    def retry_held(self, data: st.DataObject) -> None:
        call, sub = self.call(data), self.sub(data)
        token, copy = self.token(data, sub)
        self.model.retry(call, sub, copy)
        self.send(call, frames.RetryHeld(self.numbers[sub], token, "again"))

    @precondition(ready)
    @rule(data=st.data(), is_purge=st.booleans())
    def redrive_or_purge(self, data: st.DataObject, is_purge: bool) -> None:
        call, sub = self.call(data), self.sub(data)
        self.model.begin(call)
        dead = sub.at("dead")
        for copy in dead:
            copy.place = "dropped" if is_purge else "ready"
            copy.seen, copy.attempts = copy.attempts > 0, 0
        if not is_purge:
            self.model.serve(sub)
        name = f"t/{sub.name}"
        request = frames.Purge(name, None, None) if is_purge else frames.Redrive(name, None, None)
        self.settle(call, request, len(dead))

    # -- push ---------------------------------------------------------------------------------------------------------

    @precondition(ready)
    @rule(data=st.data(), is_other=st.booleans())
    def attach_or_detach(self, data: st.DataObject, is_other: bool) -> None:
        call, sub = self.call(data), self.sub(data)
        if sub.dispatcher is None or is_other:
            self.model.attach(call, sub)
            self.send(call, frames.Attach(self.numbers[sub]))
            return
        client, member = sub.dispatcher
        own = [each for each in self.free_calls() if each.client is client]
        call = own[0] if own else call
        self.model.detach(call, sub, member)
        self.settle(call, frames.Detach(self.numbers[sub], member), None)

    # -- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(STEPS))
    def time_passes(self, seconds: float) -> None:
        """As the loop does it: nothing is late."""
        until = self.model.now + seconds
        while (due := self.model.next_due()) is not None and due <= until:
            self.model.now = self.broker.now = max(self.model.now, due)
            self.tick()
            self.compare()
            after = self.model.next_due()
            assert after is None or after > self.model.now
        self.model.now = self.broker.now = until

    @rule(seconds=st.sampled_from(STEPS))
    def the_loop_is_late(self, seconds: float) -> None:
        """What comes next is read before what is due is done."""
        self.model.now += seconds
        self.broker.now += seconds

    def tick(self) -> None:
        self.model.tick()
        self.broker.carry_out(self.broker.sessions.tick(self.broker.now))

    @precondition(ready)
    @rule(data=st.data(), of_all=st.booleans())
    def expire(self, data: st.DataObject, of_all: bool) -> None:
        call, sub = self.call(data), self.sub(data)
        self.model.begin(call)
        subs = list(self.model.subs.values()) if of_all else [sub]
        count = sum(self.model.expire(each) for each in subs)
        for each in subs:
            self.model.serve(each)
        self.settle(call, frames.Expire(None if of_all else self.numbers[sub], None), count)

    # -- after every step ---------------------------------------------------------------------------------------------

    @invariant()
    def compare(self) -> None:
        for call, connection in self.connections.items():
            if not call.is_open:
                assert connection.is_closed
            elif call.expected is None:
                assert connection.waits, (connection.inbox, call.waits)
            else:
                (reply,) = connection.inbox
                assert told(reply) == call.expected
                self.note(call, reply)
        assert self.broker.sessions.next_due() == self.model.next_due()
        self.compare_places()

    def note(self, call: Call, reply: frames.Reply) -> None:
        """The tokens of an answer, when it is first seen."""
        if isinstance(reply, frames.Granted) and not call.is_seen:
            call.is_seen = True
            for token, (copy, lease) in zip(tokens(reply.grants), call.handed, strict=True):
                for sub in self.model.subs.values():
                    if copy in sub.copies:
                        assert token not in self.tokens[sub], "a token was given twice"
                        self.tokens[sub][token] = (copy, lease)

    def compare_places(self) -> None:
        alive = {self.owners[client] for client in self.model.clients}
        for sub in self.model.subs.values():
            subscription = self.broker.engine.by_number(self.numbers[sub])
            assert subscription is not None
            stats = subscription.stats(None)
            places = {
                place: len(sub.at(name))
                for place, name in (
                    ("acked", "acked"),
                    ("ready", "ready"),
                    ("delayed", "delayed"),
                    ("in_flight", "held"),
                    ("dead", "dead"),
                    ("dropped", "dropped"),
                )
            }
            assert {place: getattr(stats, place) for place in places} == places
            assert (stats.deliveries, stats.redelivered) == (sub.deliveries, sub.redelivered)
            assert subscription.dispatcher == sub.reader
            holders = {lease.owner for lease in subscription._places.leases.by_number.values()}
            assert holders <= alive


def one_of(data: st.DataObject, things: Sequence[T]) -> T:
    """One of them, drawn by its place: the things know each other, and would be printed with all they know."""
    return things[data.draw(st.integers(0, len(things) - 1))]


def told(reply: frames.Reply) -> object:
    """An answer as the model says it."""
    match reply:
        case frames.Granted(grants):
            return [
                (grant.first + n, grant.attempt, grant.redelivered, grant.deadline)
                for grant in grants
                for n in range(payloads.list_length(grant.payloads))
            ]
        case frames.Failed(kind, _):
            return kind
        case frames.Answers(values):
            return values
        case frames.Text(value) | frames.Moment(value) | frames.Number(value):
            return value
        case frames.Done():
            return None
    raise AssertionError(reply)


Sessions.TestCase.settings = settings(
    max_examples=5000 if LONG else 150,
    stateful_step_count=100 if LONG else 40,
    deadline=None,
)
TestSessions = pytest.mark.timeout(3600 if LONG else 300)(Sessions.TestCase)
