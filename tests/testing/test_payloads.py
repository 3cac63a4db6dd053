"""A payload proves what it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.testing.payloads import SMALLEST, Claims, Damaged, Payloads


@given(
    size=st.integers(SMALLEST, 300),
    seed=st.integers(0, 100),
    publisher=st.integers(0, 2**32 - 1),
    number=st.integers(0, 2**32 - 1),
    published_ns=st.integers(0, 2**63 - 1),
    priority=st.integers(0, 3),
)
def test_a_payload_says_what_it_is(
    size: int, seed: int, publisher: int, number: int, published_ns: int, priority: int
) -> None:
    payload = Payloads(size, seed).make(publisher, number, published_ns, priority)

    assert len(payload) == size
    assert Payloads(size, seed).open(payload) == Claims(publisher, number, published_ns, priority)


@given(at=st.integers(0, 99), change=st.integers(1, 255))
def test_a_payload_with_any_byte_changed_is_found_out(at: int, change: int) -> None:
    payloads = Payloads(100, 1)
    payload = bytearray(payloads.make(1, 2, 3, 1))
    payload[at] ^= change

    with pytest.raises(Damaged):
        payloads.open(bytes(payload))


@pytest.mark.parametrize("payload", [b"", b"short", bytes(100), None, "text", 5])
def test_what_is_no_payload_is_found_out(payload: object) -> None:
    with pytest.raises(Damaged):
        Payloads(100, 1).open(payload)


def test_a_payload_of_another_seed_is_found_out() -> None:
    with pytest.raises(Damaged, match="another message"):
        Payloads(100, 1).open(Payloads(100, 2).make(1, 2, 3, 1))


def test_a_payload_of_another_run_is_found_out() -> None:
    with pytest.raises(Damaged, match="of run 2, and this is run 1"):
        Payloads(100, 1, 1).open(Payloads(100, 1, 2).make(1, 2, 3, 1))


def test_a_size_that_proves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least"):
        Payloads(SMALLEST - 1)
