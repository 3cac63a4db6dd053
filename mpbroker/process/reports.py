"""The requests that look at much at once: listings, dead letters, and the status of the broker process.

A reply is bounded by the frame: dead letters come in pages, and a listing that does not fit is an error. For the
broker's side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Final

from mpbroker import checks
from mpbroker.engine import DeadRecord, Subscription
from mpbroker.errors import LimitReached
from mpbroker.messages import SubscriptionStats, TopicStats
from mpbroker.process import frames
from mpbroker.process.about import TOTALS
from mpbroker.process.acts import Act, Change, Look, Verb
from mpbroker.process.clients import Connection
from mpbroker.process.desk import REPLY_ROOM_BYTES, Desk
from mpbroker.process.encoded import letter
from mpbroker.process.frames import ArenaUse, Number, Reply, Warned

PAGE: Final = 1000
"""Dead letters in a page: the broker serves others between two of them."""

_BEYOND: Final = 2**40
"""An offset that leaps over everything, and is a number that lists can be asked for."""

_FIGURES: Final = tuple(each.name for each in fields(SubscriptionStats))


def figures(stats: SubscriptionStats) -> list[int]:
    """As they travel."""
    return [getattr(stats, name) for name in _FIGURES]


# -- listings ---------------------------------------------------------------------------------------------------------


def topics(desk: Desk, _: Connection, __: frames.Topics, ___: float) -> Reply:
    found = desk.engine.topics()
    _check_size(desk, found, len(fields(TopicStats)))
    return frames.TopicsReply(
        {name: [each.published, each.unrouted, each.subscriptions] for name, each in found.items()}
    )


def subscriptions(desk: Desk, _: Connection, request: frames.Subscriptions, now: float) -> Act:
    topic = None if request.topic is None else checks.name(request.topic, "topic")
    found = desk.engine.all_subscriptions(topic)
    _check_size(desk, [each.subscription_id for each in found], len(_FIGURES))

    def act() -> Reply:
        values = {}
        for each in found:
            desk.changed(each)
            values[each.subscription_id] = figures(each.stats(desk.engine_time(now)))
        return frames.SubscriptionsReply(values)

    return act


def _check_size(desk: Desk, names: Iterable[str], numbers: int) -> None:
    """Raise when a listing would not fit in a frame."""
    limit = desk.limits.max_frame_bytes - REPLY_ROOM_BYTES
    size = sum(len(name.encode()) + 8 + 9 * numbers for name in names)
    if size > limit:
        raise LimitReached("bytes in one listing", limit, "max_frame_bytes")


# -- dead letters -----------------------------------------------------------------------------------------------------


def dead_letters(desk: Desk, _: Connection, request: frames.DeadLetters, __: float) -> Reply:
    wanted = None if request.limit is None else checks.count(request.limit, "limit")
    offset = min(checks.count(request.offset, "offset", minimum=0), _BEYOND)
    if request.subscription_id is None:
        sources = desk.engine.all_subscriptions()
    else:
        sources = [desk.engine.by_id(request.subscription_id)]
    count = PAGE if wanted is None else min(wanted, PAGE)
    found = list(islice(_records(sources, offset, count + 1), count + 1))
    limit = desk.limits.max_frame_bytes - REPLY_ROOM_BYTES
    letters: list[frames.Letter] = []
    size = 0
    for source, record in found[:count]:
        each, nbytes = letter(source.subscription_id, record, limit)
        size += nbytes
        if letters and size > limit:
            break
        letters.append(each)
    is_cut = len(letters) < len(found) and len(letters) != wanted
    return frames.Letters(letters, is_cut)


def _records(sources: list[Subscription], offset: int, limit: int) -> Iterator[tuple[Subscription, DeadRecord]]:
    for source in sources:
        page = source.dead_letters(limit, offset)
        # Only a page that came out empty can be one that the offset leaps over.
        offset = max(0, offset - source.stats(None).dead) if not page else 0
        for record in page:
            yield source, record


def redrive(desk: Desk, _: Connection, request: frames.Redrive, __: float) -> Act:
    limit = None if request.limit is None else checks.count(request.limit, "limit")
    subscription = desk.engine.by_id(request.subscription_id)
    desk.changed(subscription)
    return lambda: Number(subscription.redrive(request.sequences, limit))


def purge(desk: Desk, _: Connection, request: frames.Purge, __: float) -> Act:
    limit = None if request.limit is None else checks.count(request.limit, "limit")
    subscription = desk.engine.by_id(request.subscription_id)
    desk.changed(subscription)
    return lambda: Number(subscription.purge(request.sequences, limit))


# -- status -----------------------------------------------------------------------------------------------------------

UNREAD_S: Final = 60.0
"""Seconds without a poll, none waiting either, after which a queue that has something ready counts as unread: workers
that are only busy come back sooner, or have more members that do."""

NEARLY: Final = 0.8
"""The part of a bound from which it is worth a warning."""

MAX_ARENA_USES: Final = 10
"""Processes in one report: those that matter for who looks for room."""

MAX_WARNINGS: Final = 100
"""In one report: who has more has one cause for many."""

_BOUNDS: Final = (
    *("max_frame_bytes", "max_name_length", "max_headers", "max_header_bytes", "ring_bytes", "frame_timeout"),
    *("arena_threshold", "max_client_arena_bytes", "arena_timeout"),
)


def status(desk: Desk, _: Connection, __: frames.Status, now: float) -> Reply:
    about, limits = desk.about, desk.limits
    all_stats = {each: each.stats(None) for each in desk.engine.all_subscriptions()}
    totals = Counter(desk.past)
    for stats in all_stats.values():
        totals.update({name: getattr(stats, name) for name in TOTALS})
    held = sum(each.backlog + each.in_flight for each in all_stats.values())
    # Each bound fits a frame, and the sum of a few that mean "no bound" would not.
    room = min(checks.MAX_COUNT, sum(each.settings.max_queue for each in all_stats))
    dead = sum(each.dead for each in all_stats.values())
    use = {
        "connections": [len(desk.connections), limits.max_connections],
        "sessions": [len(desk.sessions), limits.max_connections],
        "rings": [desk.rings, limits.max_rings],
        "waiting_calls": [desk.waiting, limits.waiting_calls],
        "topics": [len(desk.topics), limits.max_topics],
        "subscriptions": [len(all_stats), limits.max_subscriptions],
        "messages": [held, room],
        "queue_bytes": [desk.meter.used, limits.max_queue_bytes],
        "arena_bytes": [desk.blocks.reserved, limits.max_arena_bytes if limits.has_arena else 0],
        "dead_letters": [dead, min(checks.MAX_COUNT, limits.max_dead_letters * len(all_stats))],
    }
    return frames.Report(
        about.version,
        about.pid,
        desk.engine.incarnation,
        now - about.started,
        about.memory(),
        use,
        {**totals, **desk.counters},
        {**{name: getattr(limits, name) for name in _BOUNDS}, "max_payload_bytes": limits.payload_bytes},
        list(islice(_warnings(desk, all_stats, use, desk.engine_time(now)), MAX_WARNINGS)),
        _arena(desk),
    )


def _arena(desk: Desk) -> list[ArenaUse]:
    """Which processes have most of the arena, by what they keep others from using."""
    found: list[ArenaUse] = []
    for session in desk.sessions.values():
        lends = session.lends
        pinned = sum([_pinned(each) for each in session.connections.values() if each.pins])
        if lends is not None or pinned:
            reserved, used = (0, 0) if lends is None else (lends.reserved, lends.used)
            found.append(ArenaUse(session.presence.pid, reserved, used, pinned))
    for connection in desk.connections.values():
        if connection.session is None and connection.pins:
            # The lane of a process that has ended for the broker: it, or a child, still looks.
            found.append(ArenaUse(connection.pid, 0, 0, _pinned(connection)))
    left = [segment for segment in desk.blocks.segments.values() if segment.lender is None]
    if left:
        used = sum([block.nbytes for each in left for ref in each.blocks.values() if (block := ref()) is not None])
        found.append(ArenaUse(0, sum([segment.nbytes for segment in left]), used, 0))
    found.sort(key=lambda each: each.pinned + each.reserved, reverse=True)
    return found[:MAX_ARENA_USES]


def _pinned(connection: Connection) -> int:
    """Bytes of the blocks that are pinned there, each once."""
    return sum([block.nbytes for block in {pin.block for pin in connection.pins.values()}])


def _warnings(
    desk: Desk, all_stats: dict[Subscription, SubscriptionStats], use: dict[str, list[int]], now: float
) -> Iterator[Warned]:
    """What somebody should look at, what concerns all first."""
    for name in ("connections", "waiting_calls", "topics", "subscriptions", "queue_bytes", "arena_bytes"):
        used, limit = use[name]
        if _is_nearly(used, limit):
            yield Warned("limit", name, used, limit)
    for each, stats in all_stats.items():
        name, most = each.subscription_id, each.settings.max_queue
        silence = 0.0 if each.read_at is None else now - each.read_at
        if stats.ready and silence >= UNREAD_S and desk.polls.first(each) is None:
            # By a time that is told, it may be longer than a number on the wire.
            yield Warned("unread", name, stats.ready, int(min(silence, checks.MAX_COUNT)))
        held = stats.backlog + stats.in_flight
        if _is_nearly(held, most):
            yield Warned("queue", name, held, most)
        if _is_nearly(stats.dead, desk.limits.max_dead_letters):
            yield Warned("dead_letters", name, stats.dead, desk.limits.max_dead_letters)


def _is_nearly(used: int, limit: int) -> bool:
    # One of a bound of one is not what anybody needs to hear of.
    return used >= NEARLY * limit and limit > 1


VERBS: Final[dict[type, Verb]] = {
    frames.Topics: Look(topics),
    frames.Subscriptions: Change(subscriptions),
    frames.DeadLetters: Look(dead_letters),
    frames.Redrive: Change(redrive),
    frames.Purge: Change(purge),
    frames.Status: Look(status),
}
