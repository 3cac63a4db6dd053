"""What clients do, one function for each deed: each draws what it needs, asks, and tells the shadow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpbroker.errors import QueueFull, SubscriptionBusy, SubscriptionConflict, UnknownSubscription, UnknownTopic
from mpbroker.messages import Message, MessagePriority
from mpbroker.process.handle import SubscriptionHandle
from mpbroker.push.subscriber import CallbackSubscriber
from mpbroker.settings import Settings
from tests.simulation.clients import KINDS, Client, Held
from tests.simulation.forks import fork
from tests.simulation.shadow import Copy, Sent, Watched, payload_of
from tests.simulation.world import Violation

LATE_S: Final = 2.0
"""Virtual seconds that a call may take beyond its time where nothing stands in its way but the delays of the run."""


def publish(client: Client) -> None:
    _publish(client, 1)


def publish_many(client: Client) -> None:
    _publish(client, 1 + client.world.below(client.plan.many))


def _publish(client: Client, count: int) -> None:
    world, plan, shadow, crew = client.world, client.plan, client.shadow, client.crew
    topic = world.pick(plan.topics)
    headers = {"kind": world.pick(KINDS)} if world.chance(0.7) else {}
    priority = MessagePriority(world.below(4)) if world.chance(0.3) else MessagePriority.NORMAL
    sent = []
    for _ in range(count):
        crew.next_key += 1
        size = 70_000 + world.below(100_000) if world.chance(plan.large) else world.below(plan.payload_bytes)
        sent.append(Sent(crew.next_key, topic, payload_of(crew.next_key, size), headers, priority, 0))
    shadow.publishing(sent)
    if count == 1:
        result, error = client.call(
            "publish",
            lambda: client.broker.publish(topic, sent[0].payload, headers, priority=priority).sequence,
            UnknownTopic,
            QueueFull,
        )
    else:
        result, error = client.call(
            "publish_many",
            lambda: (
                client.broker.publish_many(topic, [each.payload for each in sent], headers, priority=priority)[
                    0
                ].sequence
            ),
            UnknownTopic,
            QueueFull,
        )
    if isinstance(error, (UnknownTopic, QueueFull)):
        shadow.refused(sent)
        if isinstance(error, UnknownTopic):
            client.call("create_topic", lambda: client.broker.create_topic(topic, exist_ok=True))
    elif error is None:
        shadow.published(sent, result)


def poll(client: Client) -> None:
    _poll(client, 0.0)


def wait(client: Client) -> None:
    world = client.world
    _poll(client, None if world.chance(0.1) else world.random() ** 2 * 8.0)


def _poll(client: Client, timeout: float | None) -> None:
    found = client.a_subscription()
    if found is None:
        return
    handle, sub = found
    world = client.world
    limit = 1 if world.chance(0.5) else 1 + world.below(20)
    began, epoch = world.now, client.process.epoch
    deliveries, error = client.call(
        "poll" if timeout == 0.0 else "wait",
        lambda: handle.poll(client.member, max_messages=limit, timeout=timeout),
        UnknownSubscription,
    )
    if isinstance(error, UnknownSubscription):
        client.lost(sub)
    elif error is None:
        took = world.now - began
        if not deliveries and (timeout is None or world.now < began + timeout):
            raise Violation(f"a poll came back empty after {took} of {timeout} s")
        if timeout is not None and took > timeout + LATE_S and client.crew.is_prompt(client.process):
            raise Violation(f"a poll came back after {took} s where {timeout} were given")
        if deliveries:
            world.note(f"got {sub.number} {[each.message_id for each in deliveries]} from {deliveries[0].token}")
        client.shadow.handed(sub, deliveries, client.process, epoch, limit=limit, member=client.member)
        for delivery in deliveries:
            client.held.append(Held(delivery, sub, handle))
            if len(client.held) > 60:
                client.held.pop(0)


def settle(client: Client) -> None:
    world = client.world
    for _ in range(1 + world.below(4)):
        if client.held:
            held = client.held.pop(world.below(len(client.held)) if world.chance(0.3) else -1)
            _settle(client, held)


def settle_all(client: Client) -> None:
    while client.held:
        _settle_by_token(client, client.held.pop(), "ack")


def _settle(client: Client, held: Held) -> None:
    world, plan = client.world, client.plan
    verb = "ack" if world.chance(0.7) else world.pick(VERBS)
    if world.chance(plan.by_id) and verb not in ("retry", "with"):
        _settle_by_id(client, held, verb)
    else:
        _settle_by_token(client, held, verb)


VERBS: Final = ("nack", "release", "reject", "extend", "retry", "with", "ack_many", "nack later")


def _settle_by_token(client: Client, held: Held, verb: str) -> None:
    delivery, sub, shadow, world = held.delivery, held.sub, client.shadow, client.world
    sequence = delivery.message.sequence
    if verb == "ack_many":
        _ack_many(client, held)
        return
    if verb == "extend":
        _extend(client, held)
        return
    is_ack = verb in ("ack", "with")
    asked = shadow.settling(sub, sequence, delivery.token, ack=is_ack)
    if verb == "with":
        client.call(f"with m{sequence}", lambda: delivery.__exit__(None, None, None))
        return
    ask: dict[str, Callable[[], object]] = {
        "ack": delivery.ack,
        "nack": delivery.nack,
        "nack later": lambda: delivery.nack(delay=world.random() * 3.0, error="later"),
        "release": delivery.release,
        "reject": lambda: delivery.reject(error="never"),
        "retry": lambda: delivery.retry("again"),
    }
    epoch = client.process.epoch
    answer, error = client.call(f"{verb} m{sequence} token {delivery.token}", ask[verb])
    if error is not None:
        return
    if verb == "retry":
        if answer is not None:
            shadow.one_handed(sub, answer, client.process, epoch)
            client.held.append(Held(answer, sub, held.handle))
        return
    shadow.settled(sub, sequence, asked, answer=answer, ack=is_ack)
    if world.chance(0.05):
        again, error = client.call(f"ack m{sequence} again", delivery.ack)
        if error is None and again:
            raise Violation(f"m{sequence} was settled twice by token {delivery.token}")


def _extend(client: Client, held: Held) -> None:
    delivery, world = held.delivery, client.world
    seconds = world.random() * 20.0
    copy = held.sub.copies[delivery.message.sequence]
    seen = next(each for each in copy.seen if each.token == delivery.token)
    seen.deadline = min(seen.deadline, world.now + seconds)
    answer, error = client.call("extend", lambda: delivery.extend(seconds))
    if error is not None:
        seen.asked_to_settle += 1
    elif answer:
        seen.deadline = delivery.deadline
    client.held.append(held)


def _settle_by_id(client: Client, held: Held, verb: str) -> None:
    delivery, sub, shadow, handle = held.delivery, held.sub, client.shadow, held.handle
    sequence = delivery.message.sequence
    if verb in ("extend", "ack_many", "nack later"):
        verb = "ack"
    _outside(client, sub, sequence, delivery.token)
    asked = shadow.settling(sub, sequence, delivery.token, ack=verb == "ack")
    identity, member = f"m{sequence}", client.member
    ask: dict[str, Callable[[], object]] = {
        "ack": lambda: handle.ack(identity, member),
        "nack": lambda: handle.nack(identity, member, error="bad"),
        "release": lambda: handle.release(identity, member),
        "reject": lambda: handle.reject(identity, member, error="never"),
    }
    answer, error = client.call(f"{verb} m{sequence} by id as {member}", ask[verb])
    if error is None:
        shadow.settled(sub, sequence, asked, answer=bool(answer), ack=verb == "ack", by_id=True)


def _ack_many(client: Client, held: Held) -> None:
    mine = [held, *(each for each in client.held if each.sub is held.sub)]
    client.held = [each for each in client.held if each.sub is not held.sub]
    chosen = {each.delivery.message.sequence: each.delivery.token for each in mine}
    asked = []
    for sequence, token in chosen.items():
        _outside(client, held.sub, sequence, token)
        asked.append((sequence, client.shadow.settling(held.sub, sequence, token, ack=True)))
    answers, error = client.call(
        "ack_many", lambda: held.handle.ack_many([f"m{sequence}" for sequence in chosen], client.member)
    )
    if error is None:
        for (sequence, each), answer in zip(asked, answers, strict=True):
            client.shadow.settled(held.sub, sequence, each, answer=answer, ack=True, by_id=True)


def _outside(client: Client, sub: Watched, sequence: int, token: int) -> None:
    """By its id, whatever hand-over the member has at that moment is settled."""
    copy = sub.copies[sequence]
    copy.has_outside = copy.has_outside or client.plan.shares_members
    for seen in copy.seen:
        if seen.token != token:
            seen.asked_to_settle += 1


def look(client: Client) -> None:
    world, broker = client.world, client.broker
    match world.below(6):
        case 0:
            client.call("topics", broker.topics)
        case 1:
            client.call("subscriptions", broker.subscriptions)
        case 2:
            client.call("next_deadline", broker.next_deadline)
        case 3:
            client.call("expire", broker.expire)
        case 4:
            client.call("status", broker._status)
        case _:
            found = client.a_subscription()
            if found is not None:
                stats, error = client.call("stats", found[0].stats, UnknownSubscription)
                if isinstance(error, UnknownSubscription):
                    client.lost(found[1])
                elif error is None and stats.accepted != (
                    stats.acked + stats.backlog + stats.in_flight + stats.dead + stats.dropped
                ):
                    raise Violation(f"copies are not conserved: {stats}")


def letters(client: Client) -> None:
    """Look at dead letters; put some back, or purge some."""
    found = client.a_subscription()
    if found is None:
        return
    sub, world, broker = found[1], client.world, client.broker
    identity = f"{sub.topic}/{sub.name}"
    listed, error = client.call("dead_letters", lambda: broker.dead_letters(identity, limit=20), UnknownSubscription)
    if error is not None or not listed:
        return
    names = [each.message.message_id for each in listed]
    redrives = world.chance(0.6)
    # Whatever incarnation has the name by then.
    for each in client.shadow.watched.values():
        if (each.topic, each.name) == (sub.topic, sub.name):
            for letter in listed:
                copy = each.copies.setdefault(letter.message.sequence, Copy())
                copy.was_redriven = copy.was_redriven or redrives
                copy.maybe_gone = copy.maybe_gone or not redrives
    if redrives:
        client.call("redrive", lambda: broker.redrive(identity, names), UnknownSubscription)
    else:
        client.call("purge", lambda: broker.purge_dead_letters(identity, names), UnknownSubscription)


def resubscribe(client: Client) -> None:
    topic, name = client.world.pick(client.plan.topics), client.world.pick(client.plan.names)
    with client.shadow.ending(topic, name):
        client.call("unsubscribe", lambda: client.broker.unsubscribe(topic, name), UnknownSubscription)
    client.drop_ended()
    client.subscribe(topic, name)


def delete_topic(client: Client) -> None:
    topic = client.world.pick(client.plan.topics)
    with client.shadow.ending(topic, None):
        client.call("delete_topic", lambda: client.broker.delete_topic(topic), UnknownTopic)
    client.drop_ended()
    client.call("create_topic", lambda: client.broker.create_topic(topic, exist_ok=True))


def close(client: Client) -> None:
    """Let go of everything; the next call begins anew."""
    process = client.process
    process.closes += 1
    process.epoch += 1
    process.closing += 1
    try:
        client.call("close", client.broker.close)
    finally:
        process.closing -= 1
        process.epoch += 1


def push(client: Client) -> None:
    """Dispatch a few messages of a push subscription, or let a thread do it for a while."""
    world = client.world
    pushed = client.pushed
    if pushed is None:
        topic = world.pick(client.plan.topics)
        name = f"push-{topic}"
        subscriber = CallbackSubscriber(name, lambda message: on_message(client, name, message))
        handle, error = client.call(
            "subscribe push", lambda: client.broker.subscribe(topic, subscriber), UnknownTopic, SubscriptionConflict
        )
        if error is not None:
            return
        settings = Settings(max_deliveries=5)
        watched = client.shadow.subscribed(handle._number, topic, name, None, settings)
        watched.is_push = True
        pushed = client.pushed = handle, watched
    handle, sub = pushed
    for _ in range(1 + world.below(3)):
        if not _dispatch(client, handle, sub):
            break
    if world.chance(0.3):
        client.call("close push", handle.close)


def _dispatch(client: Client, handle: SubscriptionHandle, sub: Watched) -> bool:
    """One message; whether to go on."""
    world, process = client.world, client.process
    timeout = world.random()
    began, calls, closes = world.now, sub.calls, process.closes
    finished, error = client.call(
        "dispatch_one", lambda: handle.dispatch_one(timeout=timeout), UnknownSubscription, SubscriptionBusy
    )
    if isinstance(error, UnknownSubscription):
        client.lost(sub)
        client.pushed = None
    if error is not None:
        return False
    is_early = world.now < began + timeout
    if not finished and is_early and sub.calls == calls and process.closes == closes and not sub.ended:
        raise Violation(f"dispatch_one came back with nothing after {world.now - began} of {timeout} s")
    return True


def on_message(client: Client, name: str, message: Message) -> None:
    """A subscriber: slow at times, and failing at others."""
    world = client.world
    assert client.pushed is not None
    sub = client.pushed[1]
    with client.shadow.calling(sub, message, client.process):
        if world.chance(0.3):
            client.think()
        if world.chance(0.15):
            raise ValueError("not today")


DEEDS: Final[dict[str, Callable[[Client], None]]] = {
    "settle all": settle_all,
    "publish": publish,
    "publish_many": publish_many,
    "poll": poll,
    "wait": wait,
    "settle": settle,
    "look": look,
    "letters": letters,
    "resubscribe": resubscribe,
    "delete_topic": delete_topic,
    "close": close,
    "fork": fork,
    "push": push,
}
