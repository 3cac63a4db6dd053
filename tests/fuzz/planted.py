"""A target that breaks its law, for the tests of what runs targets."""

from __future__ import annotations


def target(data: bytes) -> None:
    assert len(data) < 3 or data[0] != data[1], "planted"
