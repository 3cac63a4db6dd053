"""The ways of a consumer to a broker process: a connection that polls, and one that settles. Client side."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Final

from mpbroker.errors import ProtocolViolation
from mpbroker.pipeline.consumer import Run
from mpbroker.process import frames
from mpbroker.process.channel import rebuild
from mpbroker.process.connection import ClientProcess
from mpbroker.process.frames import AckRanges, Failed, Frame, Grant, Granted, Number, Poll, ReleaseRanges
from mpbroker.process.line import Line

_TRIES: Final = 3
"""Connections in a row that end without an answer, while the broker lives, before that is an error."""


class ProcessFetchWire:
    """See FetchWire. What was not taken of a connection's last answer is undone by the one that takes its place."""

    def __init__(self, client: ClientProcess, number: int, member: str, made: Callable[[Grant], Run]) -> None:
        """made: makes a run of a grant."""
        self.is_asked = False
        self._line = Line(client)
        self._number = number
        self._member = member
        self._made = made
        self._polls = 0
        self._broken = 0

    def ask(self, max_messages: int, timeout: float | None, is_new: bool) -> None:
        self._take(not is_new)
        self._polls += 1
        self.is_asked = True
        try:
            self._line.dispatch(frames.encode(Poll(self._number, self._member, None, max_messages, timeout)))
        except ProtocolViolation:
            self._has_broken()
        else:
            self._line.put()

    def fetch(self) -> list[Run] | None:
        if self._take():
            self._line.put()
            return None
        try:
            reply = self._line.receive(None)
        except ProtocolViolation:
            self._has_broken()
            return None
        self._broken = 0
        if type(reply) is Granted:
            return [self._made(grant) for grant in reply.grants]
        self.is_asked = False
        self._line.put()
        if type(reply) is Failed:
            raise rebuild(reply)
        raise ProtocolViolation(f"Poll was answered with {type(reply).__name__}")

    def fetched(self) -> None:
        self._line.put()

    def now(self) -> float:
        # The broker's clock is this one, less the time that it lost.
        return -inf if self._line.has_manual_time else time.monotonic()

    def look(self) -> None:
        self._take()
        try:
            self._line.receive(0.0)
        except ProtocolViolation:
            self._has_broken()
        else:
            self._line.put()

    def cancel(self) -> None:
        if self.is_asked:
            # Another one, as a thread may be reading this one; its end tells it.
            self._line.answered = self._polls - 1
            self._line.is_cancelled = True
            line = self._line.successor()
            line.take()
            self.is_asked = False
            line.close()

    def forget(self) -> None:
        self._line.forget()
        self.is_asked = False

    def close(self) -> None:
        self._line.close()

    def _has_broken(self) -> None:
        """The connection ended, cancelled by another thread, or cut by a broker that waited for somebody to read.

        Raises the error once that was so a few times without an answer in between.
        """
        self._broken += 1
        if self._broken >= _TRIES:
            self._broken = 0
            raise ProtocolViolation(f"the broker closed {_TRIES} connections of this consumer one after the other")

    def _take(self, is_anything_out: bool = True) -> bool:
        self._line.answered = self._polls - self.is_asked
        if not self._line.take(is_anything_out):
            return False
        self._polls = 0
        self.is_asked = False
        return True


class ProcessSettleWire:
    """See SettleWire. Acks that were sent on a connection that broke are sent again: the second time they are late."""

    def __init__(self, client: ClientProcess, number: int) -> None:
        self._line = Line(client)
        self._number = number
        self._out: list[int] | None = None

    @property
    def is_out(self) -> bool:
        return self._out is not None

    def ack(self, ranges: list[int]) -> None:
        self.finish()
        self._line.take()
        self._out = ranges
        try:
            self._send(AckRanges(self._number, ranges))
        except ProtocolViolation:
            return  # who waits for the answer sends it again
        self._line.put()

    def finish(self) -> None:
        tries = _TRIES
        while self._out is not None:
            try:
                if self._line.take():
                    self._send(AckRanges(self._number, self._out))
                self._receive()
            except ProtocolViolation:
                tries -= 1
                if not tries:
                    raise
            else:
                self._out = None
                self._line.put()

    def release(self, ranges: list[int]) -> None:
        tries = _TRIES
        while True:
            try:
                self._line.take()
                self._send(ReleaseRanges(self._number, ranges))
                self._receive()
            except ProtocolViolation:
                tries -= 1
                if not tries:
                    raise
            else:
                self._line.put()
                return

    def forget(self) -> None:
        self._line.forget()
        self._out = None

    def close(self) -> None:
        self._line.close()

    def _send(self, request: Frame) -> None:
        self._line.dispatch(frames.encode(request))

    def _receive(self) -> None:
        reply = self._line.receive(None)
        if type(reply) is Failed:
            raise rebuild(reply)
        if type(reply) is not Number:
            raise ProtocolViolation(f"ranges were answered with {type(reply).__name__}")
