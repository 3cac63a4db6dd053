"""Functions that a broker process may be told of as filters."""

from __future__ import annotations

from collections.abc import Mapping


def paid(headers: Mapping[str, str]) -> bool:
    return headers.get("type") == "paid"
