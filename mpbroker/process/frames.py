"""The frames between client and broker process: what each says, and how it is bytes.

A frame on a stream is a 4-byte little-endian length and that many bytes of MessagePack, one tagged array. Both sides
decode with typed decoders, so what is not a frame of the protocol is a clean error, and nothing is ever unpickled by
the broker. Imports the value modules; imported by client and broker side alike. Payloads are in payloads.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mpbroker.errors import ProtocolViolation
from mpbroker.messages import MessagePriority

PROTOCOL: Final = 2
"""Changes with every incompatible frame; the hello of every version starts with it."""

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Default bound of one frame: a batch of large payloads fits, a claimed terabyte does not (gRPC's default is 4 MiB,
Kafka's 1 MiB a message; a host-local broker moves larger ones)."""

MAX_HELLO_BYTES: Final = 4096
"""Bound of a frame before the peer proved who it is."""

ROOM_BYTES: Final = 1024 * 1024
"""What a reply may carry beyond the payloads that were accepted in one frame: publishes are bounded to the frame limit
less this, so that whatever was accepted can be delivered."""

MAX_LISTED: Final = 2_000_000
"""Entries of a list or map in a request. Each takes the broker some memory before anything can look at it."""

REMEMBERED: Final = 128
"""Answers to numbered publishes that the broker keeps for each connection: a client has at most half as many out."""

Headers = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_LISTED)]
Numbers = Annotated[list[int], msgspec.Meta(max_length=MAX_LISTED)]
Names = Annotated[list[str], msgspec.Meta(max_length=MAX_LISTED)]
Batches = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_LISTED)]


class Frame(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """The base of all frames: tagged by class name, fields by position."""


# -- handshake --------------------------------------------------------------------------------------------------------


class Hello(Frame, frozen=True):
    """The first frame of a connection. Its first two fields never change their place in any version.

    role: "presence" (one a process; its end is the process's end), "call", or "admin" (may stop the broker).
    session: 16 random bytes, the same in every connection of a process.
    connection: the client's own number for this connection, from 1.
    replaces: the number of a connection on which a call was interrupted, or 0.
    answered: how many calls on that connection ended with their answer in the caller's hands. What a later answer
    handed over is taken back. -1: unknown; then what its last answer handed over is.
    """

    protocol: int
    version: str
    role: str
    session: bytes
    connection: int
    replaces: int
    nonce: bytes
    answered: int = -1


class Challenge(Frame, frozen=True):
    """The broker's answer to Hello: its versions, its own proof that it has the key, and what to prove."""

    protocol: int
    version: str
    nonce: bytes
    proof: bytes


class Proof(Frame, frozen=True):
    proof: bytes


class Welcome(Frame, frozen=True):
    """The handshake is over. incarnation: 16 hex digits, the first part of every uid of this broker.

    ring_bytes: of shared memory each way that the broker offers for this connection; 0: none.
    """

    incarnation: str
    pid: int
    max_frame_bytes: int
    manual_time: bool
    ring_bytes: int = 0


class Share(Frame, frozen=True):
    """As the first request of a call connection, with the descriptor of a segment: go on in shared memory.

    Answered by Done with the descriptor of the broker's segment, after which the socket carries nothing but the bell;
    or by Failed, after which all goes on through the socket. ring_bytes: as in Welcome.
    """

    ring_bytes: int


# -- requests ---------------------------------------------------------------------------------------------------------


class CreateTopic(Frame, frozen=True):
    name: str
    exist_ok: bool


class DeleteTopic(Frame, frozen=True):
    name: str


class Topics(Frame, frozen=True):
    pass


class Subscriptions(Frame, frozen=True):
    topic: str | None


class Retry(Frame, frozen=True):
    """A RetryPolicy."""

    max_attempts: int
    base_delay: float
    multiplier: float
    max_delay: float


class Subscribe(Frame, frozen=True):
    """given: the names of the settings that the caller gave; the other fields below it mean nothing.

    push: made with a Subscriber (the defaults of push subscriptions apply). filter_kind: "none", "expression" (filter
    is its text) or "function" (filter is "module:qualified.name"). overflow: the value of an Overflow, or "wait" for
    overflow_wait seconds.
    """

    topic: str
    name: str
    push: bool
    given: Names
    filter_kind: str
    filter: str
    ack_timeout: float
    max_deliveries: int
    retry: Retry | None
    max_queue: int
    overflow: str
    overflow_wait: float = 0.0
    ephemeral: bool = False


class FindSubscription(Frame, frozen=True):
    topic: str
    name: str


class Unsubscribe(Frame, frozen=True):
    topic: str
    name: str


class Publish(Frame, frozen=True):
    """batches: each a MessagePack list of 1 to BATCH_MESSAGES payloads, kept as it came.

    number: 0, or 1, 2, … on a connection and those that replace it. What was applied is answered again, and not done
    again, for the last REMEMBERED of them.
    """

    topic: str
    batches: Batches
    headers: Headers
    priority: int
    number: int = 0


class Poll(Frame, frozen=True):
    """subscription: the number in Subscribed. timeout: seconds, None for ever."""

    subscription: int
    member: str
    now: float | None
    max_messages: int
    timeout: float | None


class Ack(Frame, frozen=True):
    """Ack by message: sequences, as held by member."""

    subscription: int
    member: str
    sequences: Numbers


class AckTokens(Frame, frozen=True):
    subscription: int
    tokens: Numbers


class AckRanges(Frame, frozen=True):
    """ranges: first and last token of each in turn, both of one lease. Answered by Number: how many were held."""

    subscription: int
    ranges: Numbers


class ReleaseRanges(Frame, frozen=True):
    """Release, for ranges as in AckRanges; answered the same way."""

    subscription: int
    ranges: Numbers


class Nack(Frame, frozen=True):
    """target: a sequence held by ``member``, or a token when member is None."""

    subscription: int
    target: int
    member: str | None
    delay: float | None
    error: str
    now: float | None


class Release(Frame, frozen=True):
    subscription: int
    target: int
    member: str | None


class Reject(Frame, frozen=True):
    subscription: int
    target: int
    member: str | None
    error: str


class Extend(Frame, frozen=True):
    """Answered by Moment: the new deadline, or None when it is not held."""

    subscription: int
    target: int
    member: str | None
    seconds: float | None
    now: float | None


class RetryHeld(Frame, frozen=True):
    """Delivery.retry; answered by Granted with one grant or none."""

    subscription: int
    token: int
    error: str


class Offer(Frame, frozen=True):
    subscription: int
    payload: msgspec.Raw
    headers: Headers
    priority: int
    timestamp: float
    sequence: int
    uid: str


class Expire(Frame, frozen=True):
    """subscription None: all of them."""

    subscription: int | None
    now: float | None


class NextDeadline(Frame, frozen=True):
    pass


class Stats(Frame, frozen=True):
    subscription: int
    now: float | None


class WaitIdle(Frame, frozen=True):
    subscription: int
    timeout: float | None


class Attach(Frame, frozen=True):
    """Become the push dispatcher; answered by Text: the member name to poll with."""

    subscription: int


class Detach(Frame, frozen=True):
    subscription: int
    member: str


class DeadLetters(Frame, frozen=True):
    subscription_id: str | None
    limit: int | None
    offset: int


class Redrive(Frame, frozen=True):
    subscription_id: str
    sequences: Numbers | None
    limit: int | None


class Purge(Frame, frozen=True):
    subscription_id: str
    sequences: Numbers | None
    limit: int | None


class Status(Frame, frozen=True):
    """Answered by Report. Also what ping sends."""


class Stop(Frame, frozen=True):
    """End the broker; for connections whose role is "admin"."""


class Goodbye(Frame, frozen=True):
    """The process closes cleanly: what it holds is released, uncounted. On the presence connection."""


Request = (
    Share
    | CreateTopic
    | DeleteTopic
    | Topics
    | Subscriptions
    | Subscribe
    | FindSubscription
    | Unsubscribe
    | Publish
    | Poll
    | Ack
    | AckTokens
    | AckRanges
    | ReleaseRanges
    | Nack
    | Release
    | Reject
    | Extend
    | RetryHeld
    | Offer
    | Expire
    | NextDeadline
    | Stats
    | WaitIdle
    | Attach
    | Detach
    | DeadLetters
    | Redrive
    | Purge
    | Status
    | Stop
    | Goodbye
)

# -- replies ----------------------------------------------------------------------------------------------------------


class Done(Frame, frozen=True):
    pass


class Number(Frame, frozen=True):
    value: int


class Moment(Frame, frozen=True):
    value: float | None


class Text(Frame, frozen=True):
    value: str


class Answers(Frame, frozen=True):
    """One bool for each thing asked."""

    values: list[bool]


class Subscribed(Frame, frozen=True):
    """number names this incarnation of the subscription in every later frame; retry is its policy in force."""

    topic: str
    name: str
    number: int
    retry: Retry | None


class Published(Frame, frozen=True):
    """The sequence of the first message, the wall clock of all, how many subscriptions took at least one of them."""

    first: int
    timestamp: float
    subscriptions: int


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Consecutive messages handed over together: one lease. Message i has sequence first + i and token token + i."""

    token: int
    first: int
    attempt: int
    redelivered: bool
    deadline: float
    priority: int
    timestamp: float
    headers: dict[str, str]
    payloads: msgspec.Raw


class Granted(Frame, frozen=True):
    grants: list[Grant]


class StatsReply(Frame, frozen=True):
    """The fields of SubscriptionStats, in their order."""

    values: list[int]


class TopicsReply(Frame, frozen=True):
    """topic -> the fields of TopicStats, in their order."""

    values: dict[str, list[int]]


class SubscriptionsReply(Frame, frozen=True):
    """subscription_id -> the fields of SubscriptionStats, in their order."""

    values: dict[str, list[int]]


class AttemptRecord(msgspec.Struct, array_like=True, frozen=True):
    """An Attempt."""

    number: int
    member: str
    started: float
    ended: float
    outcome: str
    error: str


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """A DeadLetter and its message."""

    subscription_id: str
    topic: str
    sequence: int
    uid: str
    priority: int
    timestamp: float
    headers: dict[str, str]
    payload: msgspec.Raw
    reason: str
    error: str
    attempts: int
    dead_since: float
    last_member: str
    history: list[AttemptRecord]


class Letters(Frame, frozen=True):
    """A page of dead letters; more says whether another one follows (a frame bounds the page)."""

    letters: list[Letter]
    more: bool


class Warned(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What somebody should look at.

    kind: "unread" (used: copies that are ready; limit: seconds since anybody asked for some), "queue" or
    "dead_letters" (of the subscription that name is the id of), or "limit" (of the broker, by its name).
    """

    kind: str
    name: str
    used: int
    limit: int


class Report(Frame, frozen=True):
    """What ``status`` shows.

    uptime: seconds. limits: name -> [use, limit]. counters: name -> value. bounds: option -> what one message, name
    or frame may have. warnings: the first of them.
    """

    version: str
    pid: int
    incarnation: str
    uptime: float
    memory_bytes: int
    limits: dict[str, list[int]]
    counters: dict[str, int]
    bounds: dict[str, float]
    warnings: list[Warned]


class Failed(Frame, frozen=True):
    """An exception: the name of its class, and its positional arguments."""

    kind: str
    args: list[str | int | float | list[str] | None]


class Gone(Frame, frozen=True):
    """The broker's last words to every connection. crashed: the reason is a traceback."""

    reason: str
    crashed: bool


Reply = (
    Challenge
    | Welcome
    | Done
    | Number
    | Moment
    | Text
    | Answers
    | Subscribed
    | Published
    | Granted
    | StatsReply
    | TopicsReply
    | SubscriptionsReply
    | Letters
    | Report
    | Failed
    | Gone
)

# -- bytes ------------------------------------------------------------------------------------------------------------

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not what was expected."""

_encoder: Final = msgspec.msgpack.Encoder()
_hello_decoder: Final = msgspec.msgpack.Decoder(Hello | Proof)
_request_decoder: Final = msgspec.msgpack.Decoder(Request)
_reply_decoder: Final = msgspec.msgpack.Decoder(Reply)


def framed(body: bytes) -> bytes:
    """A frame as it goes through a stream: its length, and its bytes."""
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def encode(frame: Frame) -> bytes:
    """The MessagePack bytes of a frame, without the length in front."""
    return _encoder.encode(frame)


def decode_hello(body: bytes | memoryview) -> Hello | Proof:
    """Raises ProtocolViolation."""
    try:
        return _hello_decoder.decode(body)
    except MALFORMED as error:
        raise ProtocolViolation(str(error)) from None


def decode_request(body: bytes | memoryview) -> Request:
    """Raises ProtocolViolation."""
    try:
        return _request_decoder.decode(body)
    except MALFORMED as error:
        raise ProtocolViolation(str(error)) from None


def decode_reply(body: bytes | memoryview) -> Reply:
    """Raises ProtocolViolation."""
    try:
        return _reply_decoder.decode(body)
    except MALFORMED as error:
        raise ProtocolViolation(str(error)) from None


def priority_of(level: int) -> MessagePriority:
    """Raises ValueError."""
    return MessagePriority(level)
