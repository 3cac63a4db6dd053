"""What calls gave, as results in a history: every message looked at, and stretches in the place of single ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpbroker.checks import sequence_of
from mpbroker.deliveries import Delivery
from mpbroker.errors import PayloadError
from mpbroker.messages import DeadLetter, Message, SubscriptionStats
from mpbroker.testing.history import NOBODY, Delivered, Figures, Letter, Published, Stretch, Target
from mpbroker.testing.payloads import Damaged, Payloads


def published(
    messages: Sequence[Message], topic: str, bodies: Sequence[bytes], headers: Mapping[str, str], priority: int
) -> Published:
    """The answer to a publish of these bodies."""
    wrong: list[str] = []
    first, uid = (messages[0].sequence, messages[0].uid) if messages else (0, "")
    if len(messages) != len(bodies):
        wrong.append(f"{len(messages)} messages for {len(bodies)} payloads")
    prefix = uid.rpartition("-")[0]
    for sequence, (message, body) in enumerate(zip(messages, bodies, strict=False), first):
        if (
            message.sequence != sequence
            or message.message_id != f"m{sequence}"
            or message.uid != f"{prefix}-{sequence}"
        ):
            wrong.append(f"m{sequence} has the ids {message.message_id}, {message.sequence} and {message.uid}")
        if message.payload != body or message.priority != priority:
            wrong.append(f"m{sequence} has another payload or priority than was given")
        if message.topic != topic or message.headers != headers:
            wrong.append(f"m{sequence} has another topic or other headers than were given")
    return Published(first, uid, wrong[:20])


def delivered(deliveries: Iterable[Delivery], topic: str, payloads: Payloads) -> Delivered:
    """The answer to a poll. Looks at every payload; one that this process cannot decode is nacked by that."""
    stretches: list[Stretch] = []
    headers: list[dict[str, str]] = []
    wrong: list[tuple[int, str]] = []
    uid, prefix = "", ""
    said: Mapping[str, str] | None = None
    known = 0
    row: tuple[Any, ...] = ()
    sequence = token = number = count = 0
    for delivery in deliveries:
        try:
            message = delivery.message
            publisher, claimed, _, priority = payloads.open(message.payload)
        except (Damaged, PayloadError) as error:
            own = sequence_of(delivery.message_id)
            wrong.append((own, str(error)))
            publisher, claimed, priority = NOBODY, 0, int(delivery.priority)
        else:
            own = message.sequence
            if not uid:
                uid = message.uid
                prefix = uid.rpartition("-")[0]
            if delivery.message_id != message.message_id or message.uid != f"{prefix}-{own}":
                wrong.append((own, f"it has the ids {delivery.message_id}, {own} and {message.uid}"))
            if message.priority != priority or message.topic != topic:
                wrong.append((own, f"it is of topic {message.topic!r} and priority {message.priority}"))
                priority = int(message.priority)
        if delivery.headers is not said:
            said = delivery.headers
            known = _place(headers, said)
        kind = (publisher, delivery.attempt, delivery.redelivered, priority, delivery.deadline, known)
        if (
            count
            and own == sequence + count
            and delivery.token == token + count
            and claimed == number + count
            and kind == row
        ):
            count += 1
            continue
        if count:
            stretches.append(_stretch(sequence, token, count, number, row))
        sequence, token, number, count, row = own, delivery.token, claimed, 1, kind
    if count:
        stretches.append(_stretch(sequence, token, count, number, row))
    return Delivered(stretches, headers, uid, wrong)


def _stretch(sequence: int, token: int, count: int, number: int, row: tuple[Any, ...]) -> Stretch:
    publisher, attempt, redelivered, priority, deadline, headers = row
    return Stretch(sequence, token, count, publisher, number, attempt, redelivered, priority, deadline, headers)


def _place(known: list[dict[str, str]], headers: Mapping[str, str]) -> int:
    """Where headers are among those that are known; at the end if they are new."""
    plain = dict(headers)
    if plain not in known:
        known.append(plain)
    return known.index(plain)


def targets_of(message_ids: Sequence[str]) -> list[Target]:
    """Ids as stretches of consecutive ones."""
    targets: list[Target] = []
    first = count = 0
    for message_id in message_ids:
        sequence = sequence_of(message_id)
        if count and sequence == first + count:
            count += 1
            continue
        if count:
            targets.append(Target(first, 0, count))
        first, count = sequence, 1
    if count:
        targets.append(Target(first, 0, count))
    return targets


def figures(stats: SubscriptionStats) -> Figures:
    """The answer to a look at the figures."""
    return Figures([getattr(stats, name) for name in SubscriptionStats.__slots__])


def letter_of(letter: DeadLetter, payloads: Payloads) -> Letter:
    """A dead letter, and what its payload claims."""
    try:
        publisher, number, _, _ = payloads.open(letter.message.payload)
    except Damaged:
        publisher, number = NOBODY, 0
    return Letter(
        letter.message.sequence,
        letter.reason.value,
        letter.attempts,
        letter.error,
        letter.last_member,
        [attempt.number for attempt in letter.history],
        publisher,
        number,
    )
