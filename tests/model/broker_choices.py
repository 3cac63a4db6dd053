"""What the broker's state machine chooses from: few names and small sizes, so that things meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from mpbroker import (
    MessagePriority,
    Overflow,
    RetryPolicy,
)
from mpbroker.settings import UNSET

TOPICS = st.sampled_from(["t", "u"])
NAMES = st.sampled_from(["a", "b", "c"])
MEMBERS = st.sampled_from(["w", "v"])
HEADERS = st.sampled_from([{}, {"k": "x"}, {"k": "y"}, {"k": "x", "z": "1"}])
PRIORITIES = st.sampled_from(MessagePriority)
ERRORS = st.sampled_from(["", "trouble", "worse trouble"])
SECONDS = st.sampled_from([0.0, 0.25, 1.0, 2.0, 5.0, 40.0])
WHICH = st.integers(0, 10**6)
COUNTS = st.sampled_from([1, 2, 3, 10, 1000])
LIMITS = st.sampled_from([None, 1, 2, 5, 1000])


def has_k(headers: Mapping[str, str]) -> bool:
    return "k" in headers


def raises_on_y(headers: Mapping[str, str]) -> bool:
    if headers.get("k") == "y":
        raise RuntimeError("y is too hard")
    return True


FILTERS: dict[object, Callable[[Mapping[str, str]], object] | None] = {
    None: None,
    'headers.k = "x"': lambda headers: headers.get("k") == "x",
    'NOT headers:z AND (headers.k != "y")': lambda h: "z" not in h and h.get("k", "y") != "y",
    has_k: has_k,
    raises_on_y: raises_on_y,
}
"""What subscribe is given -> the same in plain Python."""


def given_or_not(*values: object) -> st.SearchStrategy[Any]:
    return st.sampled_from([UNSET, *values])


SETTINGS = st.fixed_dictionaries(
    {
        "filter": given_or_not(*FILTERS),
        "ack_timeout": given_or_not(2.0, 5.0),
        "max_deliveries": given_or_not(1, 2, 3),
        "retry": given_or_not(
            None,
            RetryPolicy(2, base_delay=0.0),
            RetryPolicy(3, base_delay=1.0, multiplier=2.0, max_delay=1.5),
        ),
        "max_queue": given_or_not(1, 3, 6, 290),
        "overflow": given_or_not(*Overflow, Overflow.WAIT(0.0001)),
    }
)
