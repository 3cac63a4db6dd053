"""What users write, in forms that tell a watch when any of their code runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mpbroker import (
    BrokerAPI,
    Message,
    Subscriber,
)
from tests.engine.watched_locks import Watch


def payload_class(watch: Watch, finalizer: bool = False) -> type:
    """A class whose every method that somebody might call tells the watch."""

    def telling(name: str, answer: Any) -> Callable[..., Any]:
        def method(self: object, *arguments: object) -> Any:
            watch.user_code(f"payload.{name}")
            return answer

        return method

    methods = {
        "__eq__": True,
        "__ne__": False,
        "__hash__": 1,
        "__bool__": False,
        "__len__": 0,
        "__repr__": "payload",
        "__str__": "payload",
        "__lt__": True,
        "__sizeof__": 8,
        "__reduce__": (int, ()),
        "__copy__": None,
        "__deepcopy__": None,
        "__iter__": iter(()),
        "__getattr__": None,
    }
    if finalizer:
        methods["__del__"] = None
    return type("Payload", (), {name: telling(name, answer) for name, answer in methods.items()})


class TellingHeaders(Mapping[str, str]):
    def __init__(self, watch: Watch, entries: dict[str, str]) -> None:
        self._watch = watch
        self._entries = entries

    def __getitem__(self, key: str) -> str:
        self._watch.user_code("headers.__getitem__")
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        self._watch.user_code("headers.__iter__")
        return iter(self._entries)

    def __len__(self) -> int:
        self._watch.user_code("headers.__len__")
        return len(self._entries)


class TellingError(Exception):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __str__(self) -> str:
        self._watch.user_code("error.__str__")
        return "trouble"


class TellingFilter:
    """Accepts by a header; raises when it has none."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, headers: Mapping[str, str]) -> object:
        self._watch.filter_code("filter")
        if "type" not in headers:
            raise RuntimeError("no type")
        return headers["type"] == "created"


class TellingSubscriber(Subscriber):
    def __init__(self, watch: Watch, name: str, broker: BrokerAPI) -> None:
        self._watch = watch
        self._name = name
        self._broker = broker
        self._calls = 0

    @property
    def subscriber_id(self) -> str:
        self._watch.user_code("subscriber_id")
        return self._name

    def on_message(self, message: Message) -> None:
        self._watch.user_code("on_message")
        self._calls += 1
        if self._calls % 4 >= 2:  # twice in a row: one is retried, and then given up
            raise TellingError(self._watch)
        self._broker.topics()
        self._broker.subscriptions()


class TellingHandler(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.user_code("log handler")
