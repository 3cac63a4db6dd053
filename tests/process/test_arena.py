"""Large payloads, written once and read in place: what arrives, and that it stays right for as long as it is kept."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import pickle
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from mpbroker import (
    ArenaFull,
    BrokerGone,
    BrokerManager,
    BrokerProxy,
    Delivery,
    Loan,
    MessageBroker,
    PayloadError,
    PayloadTooLarge,
    ProtocolViolation,
    Publisher,
    SubscriptionAPI,
)
from mpbroker.process import frames
from mpbroker.process.frames import ArenaUse, Published
from mpbroker.process.naming import Transport
from mpbroker.process.payloads import Placed, encode_placed, join
from tests.prove.points_scene import wait_until

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="arenas are for Linux"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

THRESHOLD: Final = 64 * 1024
MIB: Final = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _threads_of_libraries() -> None:
    """pyarrow begins some, for good: before a test looks whether it leaves any."""
    with suppress(ImportError):
        pyarrow = importlib.import_module("pyarrow")
        pyarrow.table({"a": np.arange(100_000)}).combine_chunks()


@pytest.fixture
def manager(broker_folder: Path) -> Iterator[BrokerManager]:
    with BrokerManager(directory=broker_folder, transport="ring", arena_threshold=THRESHOLD) as manager:
        manager.broker().create_topic("t")
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> BrokerProxy:
    return manager.broker()


@pytest.fixture
def frames_in(broker: BrokerProxy) -> SubscriptionAPI:
    return broker.subscribe("t", "s")


def one(subscription: SubscriptionAPI, *, copy: bool = False) -> Delivery:
    (delivery,) = subscription.poll("w", timeout=20.0, copy=copy)
    return delivery


def uses(broker: BrokerProxy) -> list[ArenaUse]:
    return broker._status().arena


def pinned(broker: BrokerProxy) -> int:
    return sum(each.pinned for each in uses(broker))


def used(broker: BrokerProxy) -> int:
    return sum(each.used for each in uses(broker))


def noise(nbytes: int = MIB, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def churn(broker: BrokerProxy, topic: str = "other", count: int = 60) -> None:
    """Have blocks taken, written and given back, again and again."""
    broker.create_topic(topic, exist_ok=True)
    reader = broker.subscribe(topic, "churn")
    for number in range(count):
        broker.publish(topic, memoryview(noise(MIB, number)))
        one(reader).ack()
    gc.collect()
    broker.unsubscribe(topic, "churn")


# -- what arrives -----------------------------------------------------------------------------------------------------

BASE: Final = np.arange(64 * 1024, dtype=np.float64).reshape(256, 256)
PAYLOADS: Final[dict[str, Any]] = {
    "bytes": noise(200_000),
    "bytearray": bytearray(noise(200_000)),
    "array": array("d", range(30_000)),
    "dict of arrays": {"a": BASE, "b": [BASE[:100], "x"], "c": noise(100_000)},
    "text": "é" * 200_000,
    "a large pickle": [noise(20_000, n) for n in range(20)],
}
ARRAYS: Final[dict[str, Any]] = {
    "C order": BASE,
    "Fortran order": np.asfortranarray(BASE),
    "not contiguous": BASE[::2, ::3],
    "reversed": BASE[::-1],
    "empty": np.empty((0, 5)),
    "of no dimension": np.array(7.5),
    "objects": np.array([{"n": n} for n in range(20_000)], dtype=object),
    "structured": np.zeros(20_000, dtype=[("a", "<i4"), ("b", "<f8")]),
    "of times": np.arange(50_000).astype("datetime64[s]"),
    "small": np.arange(5),
}
VIEWS: Final[dict[str, memoryview]] = {
    "bytes": memoryview(noise(200_000)),
    "numbers": memoryview(array("d", range(30_000))),
    "two dimensions": memoryview(noise(200_000)).cast("B", (400, 500)),
    "strided": memoryview(noise(300_000))[::3],
    "empty": memoryview(b""),
    "small": memoryview(b"abc"),
}


@pytest.mark.parametrize("plane", ["ring", "manager"])
@pytest.mark.parametrize("copy", [False, True])
def test_what_arrives_is_what_was_published(broker_folder: Path, plane: str, copy: bool) -> None:
    with BrokerManager(directory=broker_folder, transport=plane, arena_threshold=THRESHOLD) as manager:
        broker = manager.broker()
        broker.create_topic("t")
        subscription = broker.subscribe("t", "s")
        for payload in PAYLOADS.values():
            broker.publish("t", payload)
            came = one(subscription, copy=copy).payload
            assert type(came) is type(payload)
            assert pickle.dumps(came) == pickle.dumps(payload)
        for payload in ARRAYS.values():
            broker.publish("t", payload)
            came = one(subscription, copy=copy).payload
            assert (came.dtype, came.shape) == (payload.dtype, payload.shape)
            assert np.array_equal(came, payload)
        for payload in VIEWS.values():
            broker.publish("t", payload)
            came = one(subscription, copy=copy).payload
            assert type(came) is memoryview
            assert came.readonly
            assert came.tobytes() == payload.tobytes()
            if payload.nbytes:
                assert (came.format, came.shape) == (payload.format, payload.shape)
        del came
        assert (used(broker) > 0) == (plane == "ring")


def test_a_publisher_and_a_consumer_carry_large_and_small_in_order(
    broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    sent = [memoryview(noise(THRESHOLD + n, n)) if n % 3 else n for n in range(60)]
    with broker.publisher("t") as publisher:
        for payload in sent:
            publisher.publish(payload)
    with frames_in.consume("w", idle_timeout=0.2) as deliveries:
        came = [delivery.payload for delivery in deliveries if delivery.ack()]
    assert came == sent


def test_publish_many_has_consecutive_ids_with_large_ones_among_them(
    broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    sent = [noise(THRESHOLD, n) if n % 2 else n for n in range(30)]
    messages = broker.publish_many("t", sent)
    assert [message.sequence for message in messages] == list(range(1, 31))
    came = frames_in.poll("w", max_messages=100)
    assert [(each.message_id, each.payload) for each in came] == [(f"m{n + 1}", p) for n, p in enumerate(sent)]


def test_pyarrow_tables_and_images_travel(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    image = pytest.importorskip("PIL.Image")
    table = pyarrow.table({"a": np.arange(100_000), "b": np.arange(100_000) / 3})
    picture = image.frombytes("RGB", (300, 300), noise(270_000))
    broker.publish("t", table)
    broker.publish("t", picture)
    assert used(broker) > 1_600_000
    assert one(frames_in).payload.equals(table)
    came = one(frames_in).payload
    assert (came.size, came.mode, came.tobytes()) == (picture.size, picture.mode, picture.tobytes())


def test_a_payload_below_the_threshold_touches_no_arena(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    below = THRESHOLD - 200  # as a pickle it is somewhat more
    broker.publish("t", memoryview(noise(below)))
    broker.publish("t", noise(THRESHOLD - 1))
    assert uses(broker) == []
    assert [one(frames_in).payload.nbytes, len(one(frames_in).payload)] == [below, THRESHOLD - 1]
    assert broker._status().limits["connections"][0] == 2


def test_subscriptions_share_one_block(broker: BrokerProxy) -> None:
    subscriptions = [broker.subscribe("t", f"s{n}") for n in range(8)]
    broker.publish("t", BASE)
    assert used(broker) == BASE.nbytes
    held = [one(subscription) for subscription in subscriptions]
    assert all(np.array_equal(delivery.payload, BASE) for delivery in held)
    assert (used(broker), pinned(broker)) == (BASE.nbytes, BASE.nbytes)


# -- read-only --------------------------------------------------------------------------------------------------------


def test_writing_into_a_view_is_an_exception(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    broker.publish("t", memoryview(noise()))
    broker.publish("t", BASE)
    view, numbers = one(frames_in).payload, one(frames_in).payload
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        numbers[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        numbers.setflags(write=True)
    assert not np.frombuffer(view, dtype=np.uint8).flags.writeable


def test_copies_are_the_readers_own(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    broker.publish("t", BASE)
    delivery = one(frames_in, copy=True)
    wait_until("the end of the pin", lambda: pinned(broker) == 0)
    delivery.ack()
    wait_until("the end of the block", lambda: used(broker) == 0)
    numbers = delivery.payload
    numbers[0, 0] = 99.0
    assert delivery.payload[0, 0] == 99.0
    with frames_in.consume("w", idle_timeout=0.1, copy=True) as deliveries:
        broker.publish("t", BASE)
        (second,) = [each.payload for each in deliveries if each.ack()]
    assert second.flags.writeable


# -- kept -------------------------------------------------------------------------------------------------------------


def digest(view: Any) -> str:
    return hashlib.sha256(view).hexdigest()


def test_an_array_stays_right_over_ack_redelivery_unsubscribe_and_close(broker: BrokerProxy) -> None:
    sums = [digest(noise(MIB, n)) for n in range(5)]
    subscription = broker.subscribe("t", "s", ack_timeout=0.05)
    for number in range(5):
        broker.publish("t", memoryview(noise(MIB, number)))
    acked, nacked, ended, dropped, closed = subscription.poll("w", max_messages=5)
    views = [each.payload for each in (acked, nacked, ended, dropped, closed)]
    acked.ack()
    nacked.nack()
    wait_until("the end of the leases", lambda: subscription.stats().in_flight == 0)
    again = subscription.poll("w2", max_messages=2)
    assert all(each.redelivered for each in again)
    again_views = [(each.payload, sums[int(each.message_id[1:]) - 1]) for each in again]
    broker.unsubscribe("t", "s")
    del acked, nacked, ended, dropped, closed, again
    churn(broker)
    assert [digest(view) for view in views] == sums
    broker.close()
    churn(broker)
    assert [digest(view) for view in views] == sums
    assert all(digest(view) == right for view, right in again_views)


def test_a_part_of_a_view_keeps_all_of_it(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    broker.publish("t", BASE)
    delivery = one(frames_in)
    corner = delivery.payload[5:7, 3:4].T
    delivery.ack()
    del delivery
    churn(broker)
    assert corner.tolist() == BASE[5:7, 3:4].T.tolist()
    wait_until("the end of all other pins", lambda: pinned(broker) == BASE.nbytes)
    del corner
    wait_until("the end of the pin", lambda: pinned(broker) == 0)


def test_a_delivery_that_nobody_looked_at_can_be_read_after_its_ack(
    broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    broker.publish("t", BASE)
    delivery = one(frames_in)
    delivery.ack()
    churn(broker)
    assert np.array_equal(delivery.payload, BASE)


def test_what_a_finalizer_saves_out_of_a_cycle_stays_right(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    saved: list[Any] = []

    class Saver:
        def __init__(self, view: Any) -> None:
            self.view = view
            self.me = self

        def __del__(self) -> None:
            saved.append(self.view)

    broker.publish("t", BASE)
    delivery = one(frames_in)
    delivery.ack()
    Saver(delivery.payload)
    del delivery
    gc.collect()
    assert len(saved) == 1
    churn(broker)
    assert np.array_equal(saved[0], BASE)
    saved.clear()
    wait_until("the end of the pin", lambda: pinned(broker) == 0)


def test_views_are_right_in_other_threads_and_arrays_in_other_processes(
    broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    broker.publish("t", BASE)
    delivery = one(frames_in)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda view: seen.append(np.array_equal(view, BASE)), args=(delivery.payload,))
    thread.start()
    thread.join(20.0)
    assert seen == [True]
    assert np.array_equal(pickle.loads(pickle.dumps(delivery)).payload, BASE)
    broker.publish("t", BASE.data)
    with pytest.raises(TypeError):
        pickle.dumps(one(frames_in).payload)


def test_the_end_of_the_broker_leaves_views_as_they_are(
    manager: BrokerManager, broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    broker.publish("t", BASE)
    view = one(frames_in).payload
    manager.shutdown()
    with pytest.raises(BrokerGone):
        broker.publish("t", BASE * 2)
    assert np.array_equal(view, BASE)
    del view
    gc.collect()


EXIT: Final = """
import sys, numpy
from mpbroker import connect
broker = connect("exits")
subscription = broker.subscribe("t", "s")
broker.publish("t", numpy.arange(100_000))
(delivery,) = subscription.poll("w", timeout=20)
view = delivery.payload
view.base
class Late:
    kept = view
    def __del__(self):
        assert self.kept[99_999] == 99_999
late = Late()
late.me = late
sys.modules["late"] = late
print(int(view.sum()))
"""


def test_an_interpreter_that_ends_with_live_views_ends_well(broker_folder: Path) -> None:
    with BrokerManager("exits", directory=broker_folder, arena_threshold=THRESHOLD) as manager:
        manager.broker().create_topic("t")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "4999950000\n", "")
        wait_until("the end of its session", lambda: manager.broker()._status().limits["sessions"][0] == 1)
        assert pinned(manager.broker()) == 0


# -- loans ------------------------------------------------------------------------------------------------------------


def test_a_loan_is_written_in_place_and_published_once(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    loan = broker.loan(BASE.nbytes)
    numbers = np.frombuffer(loan.buffer).reshape(BASE.shape)
    numbers[:] = BASE
    with pytest.raises(BufferError, match="delete"):
        broker.publish("t", loan)
    del numbers
    broker.publish("t", loan)
    view = one(frames_in).payload
    assert view.readonly
    assert np.array_equal(np.frombuffer(view).reshape(BASE.shape), BASE)
    with pytest.raises(ValueError, match="published"):
        broker.publish("t", loan)
    with pytest.raises(ValueError, match="published"):
        loan.buffer  # noqa: B018 - looking is the test


def test_a_part_of_a_loans_buffer_keeps_it_from_being_published(broker: BrokerProxy) -> None:
    loan = broker.loan(THRESHOLD)
    part = loan.buffer[5:10]
    with pytest.raises(BufferError):
        broker.publish("t", loan)
    part[0] = 1
    del part
    broker.publish("t", loan)


def test_a_loan_that_is_given_back_is_lent_again(broker: BrokerProxy) -> None:
    for _ in range(200):
        with broker.loan(4 * MIB) as loan:
            loan.buffer[0] = 1
    assert broker._status().limits["arena_bytes"][0] <= 64 * MIB


@pytest.mark.parametrize("nbytes", [0, 10, THRESHOLD])
def test_loans_are_there_where_no_arena_is(broker_folder: Path, nbytes: int) -> None:
    with BrokerManager(directory=broker_folder, transport="manager") as manager:
        for broker in (MessageBroker(), manager.broker()):
            with broker:
                broker.create_topic("t")
                subscription = broker.subscribe("t", "s")
                with broker.publisher("t") as publisher:
                    sends: list[Callable[[Any], object]] = [partial(broker.publish, "t"), publisher.publish]
                    for lender, send in zip((broker, publisher), sends, strict=True):
                        loan = lender.loan(nbytes)
                        assert isinstance(loan, Loan)
                        loan.buffer[:] = bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)
                        send(loan)
                came = [one(subscription).payload for _ in range(2)]
                assert [(type(each), each.readonly, each.nbytes) for each in came] == [(memoryview, True, nbytes)] * 2


@pytest.mark.parametrize("nbytes", [-1, True, 1.5, None])
def test_a_loan_of_no_size_is_refused(broker: BrokerProxy, nbytes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="nbytes"):
        broker.loan(nbytes)


# -- full -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(broker_folder: Path) -> Iterator[BrokerManager]:
    """An arena of 8 MiB, and of 4 MiB for each."""
    with BrokerManager(
        directory=broker_folder,
        transport="ring",
        arena_threshold=THRESHOLD,
        max_arena_bytes=8 * MIB,
        max_client_arena_bytes=4 * MIB,
        arena_timeout=0.05,
    ) as manager:
        manager.broker().create_topic("t")
        yield manager


def test_a_full_arena_says_who_and_how_and_small_messages_go_on(small: BrokerManager) -> None:
    broker = small.broker()
    subscription = broker.subscribe("t", "s")
    for _ in range(4):
        broker.publish("t", memoryview(noise()))
    held = subscription.poll("w", max_messages=4)
    for delivery in held:
        delivery.ack()
    with pytest.raises(ArenaFull) as caught:
        broker.publish("t", memoryview(noise()))
    assert caught.value.args == (MIB, "max_client_arena_bytes", 4 * MIB, 4 * MIB, os.getpid(), 4 * MIB)
    for what in ("4,194,304", "max_client_arena_bytes", str(os.getpid()), "copy=True", "mpbroker status"):
        assert what in str(caught.value)
    broker.publish("t", "small")
    assert one(subscription).payload == "small"
    held.clear()
    del delivery
    wait_until("room", lambda: pinned(broker) == 0)
    broker.publish("t", memoryview(noise()))


def test_a_publish_that_waits_for_room_goes_when_a_reader_lets_go(broker_folder: Path) -> None:
    with BrokerManager(
        directory=broker_folder,
        transport="ring",
        arena_threshold=THRESHOLD,
        max_client_arena_bytes=4 * MIB,
        arena_timeout=30.0,
    ) as manager:
        broker = manager.broker()
        broker.create_topic("t")
        subscription = broker.subscribe("t", "s")
        for _ in range(4):
            broker.publish("t", memoryview(noise()))
        held = subscription.poll("w", max_messages=4)
        thread = threading.Thread(target=broker.publish, args=("t", memoryview(noise(MIB, 9))))
        thread.start()
        wait_until("the wait", lambda: broker._status().limits["waiting_calls"][0] == 1)
        broker.publish("t", "small")
        assert one(subscription).payload == "small"
        held.pop().ack()
        thread.join(20.0)
        assert not thread.is_alive()
        assert digest(one(subscription).payload) == digest(noise(MIB, 9))


def test_what_never_fits_is_refused_at_once(small: BrokerManager) -> None:
    broker = small.broker()
    huge = np.empty(4 << 30, dtype=np.uint8)  # not a page of it is touched
    publisher = broker.publisher("t")
    sends: list[Callable[[Any], object]] = [partial(broker.publish, "t"), publisher.publish]
    lenders: list[BrokerProxy | Publisher] = [broker, publisher]
    for lender, send in zip(lenders, sends, strict=True):
        for payload in (huge, huge.data):
            with pytest.raises(PayloadTooLarge, match="max_client_arena_bytes"):
                send(payload)
        with pytest.raises(PayloadTooLarge, match="max_client_arena_bytes"):
            lender.loan(5 * MIB)
    publisher.close()


# -- descriptors, maps, memory ----------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


@pytest.mark.timeout(600)
def test_thousands_of_large_messages_leave_descriptors_maps_and_memory_flat(
    manager: BrokerManager, broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    payload = memoryview(bytes(4 * MIB))
    seen: list[tuple[int, int, int]] = []
    for number in range(2000):
        broker.publish("t", payload)
        delivery = one(frames_in)
        assert delivery.payload[-1] == 0
        delivery.ack()
        if number in {200, 1999}:
            seen.append((descriptors(), maps(), broker._status().limits["arena_bytes"][0]))
    del delivery
    (files, mapped, arena), (files_after, mapped_after, arena_after) = seen
    assert files_after <= files + 2
    assert mapped_after <= mapped + 10
    assert arena_after <= max(arena, 64 * MIB)
    wait_until("an empty arena", lambda: broker._status().limits["arena_bytes"][0] == 0)


# -- lies -------------------------------------------------------------------------------------------------------------


def test_a_block_of_somebody_else_ends_the_connection_that_names_it_and_nothing_else(
    manager: BrokerManager, broker: BrokerProxy, frames_in: SubscriptionAPI
) -> None:
    broker.publish("t", BASE)
    other = BrokerProxy(broker._address._replace(transport=Transport.AUTO))
    other.publish("t", BASE + 1)
    part = encode_placed(Placed(1, 1000, 0, [BASE.nbytes], b""))
    with pytest.raises(ProtocolViolation):
        other._ask(frames.Publish("t", [msgspec.Raw(join([part]))], {}, 1), Published)
    with suppress(ProtocolViolation):
        other.topics()  # on the connection that has ended
    with pytest.raises(PayloadError, match="arena"):
        other._ask(frames.ReadBlock(1, 77, 0, 10), frames.Chunk)
    assert np.array_equal(one(frames_in).payload, BASE)
    assert np.array_equal(one(frames_in).payload, BASE + 1)
    other.close()


def test_a_dead_letter_has_its_payload(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    broker.publish("t", BASE)
    one(frames_in).reject(error="no")
    (letter,) = broker.dead_letters()
    assert np.array_equal(letter.message.payload, BASE)
    broker.purge_dead_letters("t/s")
    wait_until("the end of the block", lambda: used(broker) == 0)
    assert np.array_equal(letter.message.payload, BASE)


def test_a_reader_without_shared_memory_gets_the_bytes(broker: BrokerProxy, frames_in: SubscriptionAPI) -> None:
    broker.publish("t", BASE)
    broker.publish("t", memoryview(noise(5 * MIB)))
    plain = BrokerProxy(broker._address._replace(transport=Transport.MANAGER))
    theirs = plain.subscription("t", "s")
    assert np.array_equal(one(theirs).payload, BASE)
    assert one(theirs).payload == noise(5 * MIB)
    plain.close()
