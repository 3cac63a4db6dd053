"""The targets are tested, too: with a defect in what they look at, the kept inputs break a law."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pytest

from mpbroker import filters
from mpbroker.engine.places import Places
from mpbroker.process import channel, config, encoded, frames, handshake, link, naming, payloads, verbs
from mpbroker.shm.link import RingEnd
from mpbroker.testing import history
from tests.fuzz.child import load
from tests.fuzz.part import kept
from tests.fuzz.table import TARGETS

Patch = pytest.MonkeyPatch


def _other_errors(patch: Patch) -> None:
    """What is malformed raises whatever it raises."""
    patch.setattr(frames, "MALFORMED", (msgspec.ValidationError,))


def _unchecked_hello(patch: Patch) -> None:
    patch.setattr(handshake, "SESSION_BYTES", 4)
    patch.setattr(handshake, "NONCE_BYTES", 4)
    patch.setattr(handshake, "read_hello", frames.decode_hello)


def _one_proof_for_both(patch: Patch) -> None:
    patch.setattr(handshake, "_CLIENT_LABEL", handshake._BROKER_LABEL)


def _no_error_that_can_be_raised(patch: Patch) -> None:
    patch.setattr("tests.fuzz.targets.reply.rebuild", lambda reply: reply)


def _lost_half_header(patch: Patch) -> None:
    honest: Callable[..., Any] = link.Link._split

    def split(self: link.Link, view: memoryview) -> Any:
        bodies = honest(self, view)
        self._part = b""
        return bodies

    patch.setattr(link.Link, "_split", split)


def _limit_of_the_client_ignored(patch: Patch) -> None:
    honest: Callable[..., Any] = channel.Channel._read

    def read(self: channel.Channel, deadline: float | None = None) -> Any:
        self._limit = 1 << 20
        return honest(self, deadline)

    patch.setattr(channel.Channel, "_read", read)


def _short_heads(patch: Patch) -> None:
    patch.setattr(payloads, "list_head", lambda count: bytes([0x90 | count & 0x0F]))


def _any_extension(patch: Patch) -> None:
    patch.setattr(payloads, "BATCH_MESSAGES", 10)
    patch.setattr(encoded.EncodedBatch, "_span", lambda self, start, stop: (0, len(self.blob)))


def _opened_pickles(patch: Patch) -> None:
    honest = payloads.check_payloads

    def check(batch: bytes | memoryview) -> int:
        for payload in payloads.decode_payloads(batch):
            payloads.open_payload(payload)
        return honest(batch)

    patch.setattr(payloads, "check_payloads", check)


def _no_negation(patch: Patch) -> None:
    patch.setattr(filters, "_negated", lambda node: node)


def _order_counts(patch: Patch) -> None:
    patch.setattr(filters, "_compiled", lambda node: bool)


def _dead_brokers_live(patch: Patch) -> None:
    patch.setattr(naming, "try_lock", lambda fd, shared=False: False)


def _any_key(patch: Patch) -> None:
    patch.setattr(naming, "KEY_BYTES", 31)


def _said_otherwise(patch: Patch) -> None:
    honest = dataclasses.asdict
    patch.setattr(config, "asdict", lambda words: {**honest(words), "stderr": 5})


def _other_headers(patch: Patch) -> None:
    patch.setattr(history, "_HEADER", struct.Struct(">I"))


def _defect_in_a_verb(patch: Patch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("a defect")

    patch.setitem(verbs.VERBS, frames.AckTokens, fail)


def _lost_count(patch: Patch) -> None:
    honest: Callable[..., Any] = Places.ack

    def ack(self: Places, *arguments: Any) -> None:
        honest(self, *arguments)
        self._acked -= 1

    patch.setattr(Places, "ack", ack)


def _a_lie_in_the_middle_of_a_turn_is_a_defect(patch: Patch) -> None:
    patch.setattr(RingEnd, "arm", lambda self, *, for_bytes, for_room: not (for_bytes and self._ring.waiting()))


def _kept_by_the_dead(patch: Patch) -> None:
    patch.setattr("mpbroker.engine.subscription.Subscription.end_owner", lambda *_, **__: 0)


DEFECTS: list[tuple[str, Callable[[Patch], None]]] = [
    ("hello", _other_errors),
    ("hello", _unchecked_hello),
    ("hello", _one_proof_for_both),
    ("request", _other_errors),
    ("reply", _other_errors),
    ("reply", _no_error_that_can_be_raised),
    ("framing", _lost_half_header),
    ("framing", _limit_of_the_client_ignored),
    ("payloads", _short_heads),
    ("payloads", _any_extension),
    ("payloads", _opened_pickles),
    ("filters", _no_negation),
    ("filters", _order_counts),
    ("naming", _dead_brokers_live),
    ("naming", _any_key),
    ("config", _said_otherwise),
    ("history", _other_headers),
    ("ring", _a_lie_in_the_middle_of_a_turn_is_a_defect),
    ("sessions", _defect_in_a_verb),
    ("sessions", _lost_count),
    ("sessions", _kept_by_the_dead),
]


@pytest.mark.parametrize(("name", "defect"), DEFECTS, ids=[f"{name}{d.__name__}" for name, d in DEFECTS])
def test_a_defect_breaks_a_law_with_a_kept_input(name: str, defect: Callable[[Patch], None]) -> None:
    target = load(name)
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        broken = [path for path in kept(name) if breaks(target, path.read_bytes())]
    assert broken


def breaks(target: Callable[[bytes], None], given: bytes) -> bool:
    try:
        target(given)
    except Exception:
        return True
    return False


def test_every_target_has_a_defect_that_it_sees() -> None:
    assert {name for name, _ in DEFECTS} == set(TARGETS)
