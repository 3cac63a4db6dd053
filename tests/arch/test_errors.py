"""Errors travel between processes unchanged, and name the thing at fault."""

from __future__ import annotations

import copy
import inspect
import pickle
import queue
from concurrent.futures import BrokenExecutor

import pytest

import mpbroker
from mpbroker import errors
from mpbroker.errors import MpbrokerError

EXAMPLES: dict[str, list[tuple[object, ...]]] = {
    "AccessRefused": [("the key is not the broker's",)],
    "BrokerFailed": [("it exited with code 3 before it was ready",)],
    "BrokerFull": [(1_073_741_000, 5000, 1_073_741_824)],
    "BrokerGone": [("it was stopped",)],
    "BrokerNotFound": [("orders", "/run/user/1000/mpbroker", "there is no socket")],
    "CallFailed": [("KeyError: 7",)],
    "ExecutorBroken": [("the broker is gone",)],
    "HandlerError": [("app:handle", "module app has no 'handle'")],
    "HeadersTooLarge": [("headers", 300, 256, "max_headers")],
    "InsecureFolder": [("/tmp/mpbroker-1000", "it belongs to user 1001")],
    "InvalidFilter": [("headers.a =", "a value is missing", 11), ("<lambda>", "has no name", None)],
    "InvalidName": [("topic", "a/b", "'/' is not allowed")],
    "LimitReached": [("connections", 1024, "--max-connections")],
    "MpbrokerError": [("something",), ()],
    "TransportUnavailable": [("ring", "the broker offers none")],
    "NameTaken": [("orders", "/tmp/mpbroker-0", 4711), ("orders", "/tmp/mpbroker-0", None)],
    "PayloadError": [("payload of m7", "no module named shop")],
    "PayloadTooLarge": [
        ("the payload", 80_000_000, 67_108_864),
        ("a payload", 2000, 1000, "max_payload_bytes"),
    ],
    "PoolEnded": [("its supervisor, process 7, died: signal 9 (SIGKILL)",)],
    "ProtocolViolation": [("a frame of 2,000,000,000 bytes",)],
    "QueueFull": [("orders/billing", 1000)],
    "SubscriptionBusy": [("orders/billing",)],
    "SubscriptionConflict": [("orders/billing", ("ack_timeout", "filter"))],
    "TopicExists": [("orders",)],
    "UnknownSubscription": [("orders/billing",)],
    "UnknownTopic": [("orders",)],
    "VersionMismatch": [("0.1.0", "0.2.0")],
    "WorkerDied": [(5, "worker died: signal 9 (SIGKILL)")],
}
"""Class -> arguments as the code gives them."""

ALSO: dict[str, type[Exception]] = {
    "BrokerFull": queue.Full,
    "BrokerGone": ConnectionError,
    "BrokerNotFound": ConnectionError,
    "ExecutorBroken": BrokenExecutor,
    "InvalidFilter": ValueError,
    "InvalidName": ValueError,
    "QueueFull": queue.Full,
    "UnknownSubscription": LookupError,
    "UnknownTopic": LookupError,
    "WorkerDied": BrokenExecutor,
}
"""Classes of Python that some errors are too."""


def classes() -> dict[str, type[MpbrokerError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, MpbrokerError) and not name.startswith("_")
    }


def examples() -> list[MpbrokerError]:
    known = classes()
    return [known[name](*args) for name in known for args in EXAMPLES.get(name, ())]


def shown(error: MpbrokerError) -> str:
    return type(error).__name__ + str(len(error.args))


def test_every_error_has_an_example() -> None:
    assert set(EXAMPLES) == set(classes())


def test_every_error_is_offered_by_the_package() -> None:
    assert set(classes()) <= set(getattr(mpbroker, "__all__", ()))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", examples(), ids=shown)
def test_an_error_survives_pickling(error: MpbrokerError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)


@pytest.mark.parametrize("error", examples(), ids=shown)
def test_an_error_survives_copying(error: MpbrokerError) -> None:
    again = copy.deepcopy(error)
    assert type(again) is type(error)
    assert (again.args, str(again)) == (error.args, str(error))


@pytest.mark.parametrize("error", examples(), ids=shown)
def test_an_error_can_be_built_again_from_its_name_and_arguments(error: MpbrokerError) -> None:
    again = getattr(errors, type(error).__name__)(*error.args)
    assert str(again) == str(error)


@pytest.mark.parametrize("error", examples(), ids=shown)
def test_an_error_names_the_thing_at_fault(error: MpbrokerError) -> None:
    if error.args and isinstance(error.args[0], str):
        assert error.args[0] in str(error)


@pytest.mark.parametrize(("name", "kind"), list(ALSO.items()), ids=list(ALSO))
def test_an_error_is_the_fitting_class_of_python_too(name: str, kind: type[Exception]) -> None:
    assert issubclass(classes()[name], kind)
