"""The kill points of a broker process, and what brings it there. The broker itself imports it, and arms one of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tests.prove import points_stirs as stirs
from tests.prove.planes import BOTH, Planes
from tests.prove.points_stirs import Stir
from tests.prove.points_trap import Asked, Spot, When

_LOOP: Final = "mpbroker.process.loop:Loop"
_LINK: Final = "mpbroker.process.link:Link"
_SESSIONS: Final = "mpbroker.process.sessions:Sessions"
_DESK: Final = "mpbroker.process.desk:Desk"
_ENGINE: Final = "mpbroker.engine.broker:Engine"
_SUBSCRIPTION: Final = "mpbroker.engine.subscription:Subscription"
_PLACES: Final = "mpbroker.engine.places:Places"
_CLAIMS: Final = "mpbroker.process.claims"

BEFORE, AFTER = When.BEFORE, When.AFTER


class Phase(Enum):
    """When in the life of a broker a point is."""

    START = "start"
    SERVE = "serve"
    END = "end"


@dataclass(frozen=True, slots=True)
class BrokerPoint:
    """One point in a broker process. ready: the broker said that it is, before it gets there. planes: where it is."""

    name: str
    spot: Spot
    stir: Stir = stirs.only_looks_on
    phase: Phase = Phase.SERVE
    ready: bool = True
    planes: Planes = BOTH

    @property
    def side(self) -> str:
        return "broker"


def _accepted(_: Asked, effects: Any) -> bool:
    return any(type(getattr(each, "reply", None)).__name__ == "Published" for each in effects)


STARTING: Final = [
    BrokerPoint(f"broker {where}", spot, phase=Phase.START, ready=ready)
    for where, spot, ready in (
        ("before it claims its name", Spot(f"{_CLAIMS}:_take"), False),
        ("has the lock of its name, and nothing else", Spot(f"{_CLAIMS}:_take", AFTER), False),
        ("before it binds its socket", Spot(f"{_CLAIMS}:_listen"), False),
        ("listens, and nobody can know it", Spot(f"{_CLAIMS}:_listen", AFTER), False),
        (
            "half through the writing of its info file",
            Spot("os:rename", BEFORE, 2, f"{_CLAIMS}:BrokerFolder.claim"),
            False,
        ),
        ("can be found, and is not ready", Spot(f"{_CLAIMS}:_write", AFTER, 2), False),
        ("just said that it is ready", Spot(f"{_LOOP}.run"), True),
    )
]

CONNECTING: Final = [
    BrokerPoint(f"broker {where}", spot, stirs.connects)
    for where, spot in (
        ("before it accepts a connection", Spot(f"{_LOOP}._accept")),
        ("accepted a connection", Spot(f"{_SESSIONS}.opened", AFTER)),
        ("before it reads a hello", Spot(f"{_SESSIONS}._hello")),
        ("before it sends a challenge", Spot(f"{_SESSIONS}._hello", AFTER)),
        ("before it checks a proof", Spot(f"{_SESSIONS}._proof")),
        ("let a process in and watches it not yet", Spot(f"{_SESSIONS}._begin", AFTER)),
        ("before it sends a welcome", Spot(f"{_SESSIONS}._proof", AFTER)),
    )
]

SERVING: Final = [
    BrokerPoint(f"broker {where}", spot, stir)
    for where, spot, stir in (
        ("before it decides on a publish", Spot(f"{_ENGINE}.publish"), stirs.publishes),
        (
            "put a publish in one subscription and not in the other",
            Spot(f"{_SUBSCRIPTION}.put", BEFORE, 2, f"{_ENGINE}.publish"),
            stirs.publishes,
        ),
        ("decided on a publish", Spot(f"{_ENGINE}.publish", AFTER), stirs.publishes),
        (
            "before it carries out what it decided",
            Spot(f"{_SESSIONS}.received", AFTER, only=_accepted),
            stirs.publishes,
        ),
        ("before it writes a reply", Spot(f"{_LINK}.write"), stirs.publishes),
        (
            "half through the writing of a reply",
            Spot(f"{_LINK}.write", AFTER, only=lambda _, all_: not all_),
            stirs.polls_much,
        ),
        ("before it goes on with a large reply", Spot(f"{_LINK}.flush", BEFORE, 2), stirs.polls_much),
        (
            "took copies for a poll and has not answered",
            Spot(f"{_SUBSCRIPTION}.take", AFTER, only=lambda _, got: got),
            stirs.polls,
        ),
        ("just let a poll wait", Spot(f"{_DESK}.park", AFTER), stirs.waits_in_vain),
        ("is at the end of a wait", Spot(f"{_SESSIONS}.tick"), stirs.waits_in_vain),
        (
            "served a poll that waits and has not written it",
            Spot(f"{_DESK}._answer", AFTER, only=lambda asked, _: asked[1].member is not None),
            stirs.publishes_to_who_waits,
        ),
        ("before it undoes a hand-over", Spot(f"{_SUBSCRIPTION}.undo"), stirs.puts_an_answer_to_no_use),
        ("acked half a batch", Spot(f"{_PLACES}.ack", BEFORE, 3, f"{_SUBSCRIPTION}._ack"), stirs.acks_a_batch),
        ("has a nacked copy in no place", Spot(f"{_PLACES}._failed", AFTER, within=f"{_PLACES}.fail"), stirs.nacks),
        ("before it moves a deadline", Spot("mpbroker.engine.leases:LeaseTable.extend"), stirs.extends),
        (
            "took back one of two leases that ended",
            Spot(f"{_PLACES}.fail", BEFORE, 2, f"{_SUBSCRIPTION}._expire"),
            stirs.is_too_slow,
        ),
        (
            "redrove half of the dead letters",
            Spot("mpbroker.engine.ready:ReadyQueue.put_back", BEFORE, 2, f"{_PLACES}.redrive"),
            stirs.redrives,
        ),
        ("learns that a worker died", Spot(f"{_SESSIONS}.process_ended"), stirs.loses_a_worker),
        (
            "took back half of what a dead worker held",
            Spot(f"{_PLACES}.fail", BEFORE, 2, f"{_SUBSCRIPTION}.end_owner"),
            stirs.loses_a_worker,
        ),
        (
            "took back half of what a closing worker held",
            Spot(f"{_PLACES}.give_back", BEFORE, 2, f"{_SUBSCRIPTION}.end_owner"),
            stirs.says_goodbye,
        ),
        (
            "forgot a subscription and has not ended it",
            Spot(f"{_SUBSCRIPTION}.end", BEFORE, 1, f"{_ENGINE}.unsubscribe"),
            stirs.unsubscribes,
        ),
        (
            "ended half the subscriptions of a deleted topic",
            Spot(f"{_SUBSCRIPTION}.end", BEFORE, 2, f"{_ENGINE}.delete_topic"),
            stirs.deletes_a_topic,
        ),
        (
            "gave a dispatcher its place",
            Spot(f"{_SUBSCRIPTION}.attach_dispatcher", AFTER),
            stirs.becomes_the_dispatcher,
        ),
    )
]

ENDING: Final = [
    BrokerPoint(f"broker {where}", spot, phase=Phase.END)
    for where, spot in (
        ("before its farewell", Spot(f"{_LOOP}._farewell")),
        ("before it gives its name back", Spot(f"{_CLAIMS}:_vacate")),
        ("half through the removal of its folder", Spot("os:unlink", BEFORE, 3, f"{_CLAIMS}:_vacate")),
        ("gave its name back and has told nobody", Spot(f"{_CLAIMS}:BrokerFolder.release", AFTER)),
        ("told half of its clients", Spot(f"{_LINK}.write", BEFORE, 2, f"{_LOOP}._farewell")),
        ("told everybody and has closed nothing", Spot(f"{_LOOP}._close_all")),
    )
]

POINTS: Final = [*STARTING, *CONNECTING, *SERVING, *ENDING]
