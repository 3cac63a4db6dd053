"""``mpbroker status``: what a broker holds, and how close it is to its limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mpbroker.cli.exits import verb
from mpbroker.cli.options import AsJson, Directory, Name, connected
from mpbroker.cli.output import duration, plural, say, shown, size, table

if TYPE_CHECKING:
    from mpbroker.messages import SubscriptionStats, TopicStats
    from mpbroker.process.frames import ArenaUse, Report, Warned

_COLUMNS = ("ready", "delayed", "in_flight", "dead", "acked", "redelivered", "late_acks", "dropped")


@verb
def status(name: Name = "default", directory: Directory = None, as_json: AsJson = False) -> None:
    """Show the topics and subscriptions of a broker, and what it uses."""
    with connected(name, directory) as broker:
        report, topics, subscriptions = broker._status(), broker.topics(), broker.subscriptions()
    if as_json:
        import json

        say(json.dumps(_as_dict(name, report, topics, subscriptions), indent=2))
    else:
        say(_as_text(name, report, topics, subscriptions))


def _as_dict(
    name: str, report: Report, topics: dict[str, TopicStats], subscriptions: dict[str, SubscriptionStats]
) -> dict[str, Any]:
    return {
        "name": name,
        "version": report.version,
        "pid": report.pid,
        "incarnation": report.incarnation,
        "uptime_seconds": report.uptime,
        "memory_bytes": report.memory_bytes,
        "limits": {what: {"used": used, "limit": limit} for what, (used, limit) in report.limits.items()},
        "bounds": report.bounds,
        "counters": report.counters,
        "arena": [
            {"pid": each.pid, "reserved": each.reserved, "used": each.used, "pinned": each.pinned}
            for each in report.arena
        ],
        "warnings": [
            {"kind": each.kind, "name": each.name, "used": each.used, "limit": each.limit, "text": _warning(each)}
            for each in report.warnings
        ],
        "topics": {topic: asdict(stats) for topic, stats in topics.items()},
        "subscriptions": {each: asdict(stats) for each, stats in subscriptions.items()},
    }


def _as_text(
    name: str, report: Report, topics: dict[str, TopicStats], subscriptions: dict[str, SubscriptionStats]
) -> str:
    limits = [f"{what.replace('_', ' ')} {used:,} of {limit:,}" for what, (used, limit) in report.limits.items()]
    counters = [f"{what.replace('_', ' ')} {count:,}" for what, count in report.counters.items()]
    use = f"up {duration(report.uptime)}, {size(report.memory_bytes)} of memory"
    bounds = [
        f"{option} {bound:,g}" if isinstance(bound, float) else f"{option} {bound:,}"
        for option, bound in report.bounds.items()
    ]
    lines = [
        f"broker {name!r}, version {report.version}, process {report.pid}, {use}",
        f"in use: {', '.join(limits)}",
        f"so far: {', '.join(counters)}",
        f"bounds: {', '.join(bounds)}",
        *(f"arena: {_arena_use(each)}" for each in report.arena),
        *(f"warning: {_warning(each)}" for each in report.warnings),
        "",
    ]
    if not topics:
        lines.append("no topics")
        return "\n".join(lines)
    rows = [["topic", "published", "unrouted", "subscriptions"]]
    for topic, figures in topics.items():
        rows.append([shown(topic), *(f"{value:,}" for value in asdict(figures).values())])
    lines.append(table(rows, right=range(1, 4)))
    if subscriptions:
        rows = [["subscription", *(column.replace("_", " ") for column in _COLUMNS)]]
        for each, stats in subscriptions.items():
            rows.append([shown(each), *(f"{getattr(stats, column):,}" for column in _COLUMNS)])
        lines += ["", table(rows, right=range(1, len(_COLUMNS) + 1))]
    return "\n".join(lines)


def _arena_use(use: ArenaUse) -> str:
    who = f"process {use.pid}" if use.pid else "processes that ended"
    return f"{who} reserved {size(use.reserved)}, {size(use.used)} of that needed; looks at {size(use.pinned)}"


def _warning(warned: Warned) -> str:
    name, used, limit = shown(warned.name), f"{warned.used:,}", f"{warned.limit:,}"
    match warned.kind:
        case "unread":
            since = duration(float(warned.limit))
            return f"nobody reads {name}: {plural(warned.used, 'message')} ready, and no poll for {since}"
        case "queue":
            return f"{name} holds {used} of its max_queue of {limit} messages"
        case "dead_letters":
            return f"{name} has {used} dead letters, and keeps {limit} (max_dead_letters)"
        case _:
            return f"{name.replace('_', ' ')} are {used} of {limit}"
