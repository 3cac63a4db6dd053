"""What a stress run came to, for people and for programs."""

from __future__ import annotations

from typing import Any, Final

from mpbroker.cli.output import duration, plural, size, table
from mpbroker.cli.stress.conductor import Outcome
from mpbroker.cli.stress.ledger import Check
from mpbroker.cli.usage import Usage

_PERCENTILES: Final = (50.0, 90.0, 99.0)


def describe(outcome: Outcome) -> str:
    """The run in one line."""
    plan = outcome.plan
    groups = plural(plan.subscriptions, "group")
    parts = [
        f"{plural(plan.publishers, 'publisher')} x {plural(plan.messages, 'message')}",
        f"{groups} of {plural(plan.workers, 'worker')}, 1 observer",
        f"{plan.payload_bytes} B",
        f"batches of {plan.batch}" if plan.batch > 1 else "one message a call",
        outcome.start_method,
        f"seed {plan.seed}",
    ]
    if plan.priorities:
        parts.append("four priorities")
    if plan.kill_workers:
        parts.append(f"{plural(plan.kill_workers, 'worker')} killed")
    return ", ".join(parts)


def as_text(outcome: Outcome) -> str:
    """The whole report."""
    plan = outcome.plan
    acked = sum(outcome.shares.values())
    rows = [
        ["published", f"{plan.total:,}", f"in {duration(outcome.publish_s)}", _rate(plan.total, outcome.publish_s)],
        ["acked", f"{acked:,}", f"in {duration(outcome.total_s)}", _rate(acked, outcome.total_s)],
    ]
    latency = outcome.latency
    spans = [f"p{percent:g} {duration(latency.percentile(percent) / 1e6)}" for percent in _PERCENTILES]
    lines = [
        f"stress: {describe(outcome)}",
        table(rows, right=(1,), indent="  "),
        f"  latency, publish to delivery: {', '.join(spans)}, max {duration(latency.largest / 1e6)}",
        f"  redelivered: {redelivered(outcome):,}",
        *_shares(outcome),
        f"  broker: {_usage(outcome.broker)}",
    ]
    if outcome.waits:
        lines.append(f"  publishers waited for a full subscription: {plural(outcome.waits, 'time')}")
    lines += [f"  killed: {kill.worker}, which held {plural(kill.held, 'message')}" for kill in outcome.kills]
    lines.append("checks")
    lines += [line for check in outcome.checks for line in _check(check)]
    failed = sum(not check.holds for check in outcome.checks)
    lines.append(f"{failed} of {len(outcome.checks)} checks FAILED" if failed else "all checks passed")
    return "\n".join(lines)


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The same for programs."""
    latency = outcome.latency
    return {
        "passed": outcome.passed,
        "plan": outcome.plan.as_dict() | {"start_method": outcome.start_method, "total": outcome.plan.total},
        "publish_seconds": outcome.publish_s,
        "seconds": outcome.total_s,
        "acked_per_second": sum(outcome.shares.values()) / outcome.total_s if outcome.total_s else 0.0,
        "latency_seconds": {f"p{percent:g}": latency.percentile(percent) / 1e6 for percent in _PERCENTILES}
        | {"max": latency.largest / 1e6},
        "redelivered": redelivered(outcome),
        "shares": outcome.shares,
        "publisher_waits": outcome.waits,
        "kills": [{"worker": kill.worker, "held": kill.held} for kill in outcome.kills],
        "broker": outcome.broker.as_dict(),
        "subscriptions": {
            name: {figure: getattr(stats, figure) for figure in stats.__slots__}
            for name, stats in outcome.stats.items()
        },
        "checks": [
            {
                "law": check.law,
                "holds": check.holds,
                "offenders": check.offenders.count,
                "named": check.offenders.named,
            }
            for check in outcome.checks
        ],
    }


def redelivered(outcome: Outcome) -> int:
    return sum(stats.redelivered for stats in outcome.stats.values())


def shares(by_worker: dict[str, int]) -> str:
    """Who did how much."""
    total = max(1, sum(by_worker.values()))
    return ", ".join(f"{name} {count:,} ({count / total:.0%})" for name, count in by_worker.items())


def _usage(usage: Usage) -> str:
    memory = f"{size(usage.memory)} of memory ({size(usage.peak_memory)} at most)"
    return f"{memory}, {duration(usage.cpu_s)} of processor time"


def _shares(outcome: Outcome) -> list[str]:
    groups = outcome.plan.groups
    if len(groups) == 1:
        return [f"  shares: {shares(outcome.shares)}"]
    return [
        f"  shares of {group}: "
        + shares({name.split()[-1]: count for name, count in outcome.shares.items() if name.startswith(f"{group} ")})
        for group in groups
    ]


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds > 0 else ""


def _check(check: Check) -> list[str]:
    if check.holds:
        return [f"  ok      {check.law}"]
    named = check.offenders.named
    lines = [f"  FAILED  {check.law}", *(f"            {text}" for text in named)]
    more = check.offenders.count - len(named)
    if more > 0:
        lines.append(f"            ({plural(check.offenders.count, 'offender')} in all)")
    return lines
