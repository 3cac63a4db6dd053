"""The way of a publisher's batches to a broker process: a numbered Publish frame each. Client side."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mpbroker.errors import ProtocolViolation
from mpbroker.loans import Loan
from mpbroker.pipeline import Answer, Batch
from mpbroker.pipeline.publisher import WINDOW
from mpbroker.process import frames
from mpbroker.process.channel import rebuild
from mpbroker.process.connection import ClientProcess
from mpbroker.process.frames import Failed, Publish, Published
from mpbroker.process.line import Line
from mpbroker.process.payloads import BATCH_BYTES, Kept, encode_payload, join

_ANSWER_BYTES: Final = 4096
"""More than any answer to a publish, and a refusal names a topic and a subscription."""

_encoder: Final = msgspec.msgpack.Encoder()


class ProcessPublishWire:
    """See PublishWire. Numbers begin anew with each session, as the broker's memory of them does."""

    def __init__(self, client: ClientProcess) -> None:
        self.payload_bytes = 0
        self.window = WINDOW
        self._client = client
        self._line = Line(client)

    def encode(self, payload: Any) -> tuple[Any, int]:
        encoded = encode_payload(payload, self._client.place())
        if type(encoded) is Kept:
            return encoded, max(BATCH_BYTES, len(encoded))  # so that it is a batch of its own
        return msgspec.Raw(encoded), len(encoded)

    def loan(self, nbytes: int) -> Loan:
        return self._client.loan(nbytes)

    def take(self, is_anything_out: bool) -> bool:
        is_new = self._line.take(is_anything_out)
        self.payload_bytes = self._line.max_frame_bytes - frames.ROOM_BYTES
        room = self._line.answer_bytes
        self.window = max(1, min(WINDOW, room // _ANSWER_BYTES)) if room else WINDOW
        return is_new

    def put(self) -> None:
        self._line.put()

    def send(self, topic: str, batch: Batch) -> None:
        body = batch.body
        if body is None:
            if not batch.number:
                batch.number = self._line.requests = self._line.requests + 1
            kept = batch.parts[0]
            # bytes are what they are on the wire, and the others were encoded when they came.
            payloads = msgspec.Raw(join([kept]) if type(kept) is Kept else _encoder.encode(batch.parts))
            request = Publish(topic, [payloads], batch.headers or {}, int(batch.priority), batch.number)
            body = frames.encode(request)
            if type(kept) is Kept:
                body = Kept.of(body, kept)
            batch.body = body
            batch.parts = []
        self._line.dispatch(body)

    def receive(self, timeout_s: float | None) -> Answer | Exception | None:
        reply = self._line.receive(timeout_s)
        if type(reply) is Published:
            return Answer(reply.first, reply.timestamp, self._client.incarnation)
        if type(reply) is Failed:
            return rebuild(reply)
        if reply is None:
            return None
        raise ProtocolViolation(f"Publish was answered with {type(reply).__name__}")

    def forget(self) -> None:
        self.payload_bytes = 0
        self._line.forget()

    def close(self) -> None:
        self._line.close()
