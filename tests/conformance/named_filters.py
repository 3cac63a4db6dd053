"""Filters that a broker process can import by name. Imports nothing that a broker has no use for."""

from __future__ import annotations

from collections.abc import Mapping


def is_created(headers: Mapping[str, str]) -> bool:
    return headers.get("type") == "created"


def has_region(headers: Mapping[str, str]) -> bool:
    return "region" in headers


def raises(headers: Mapping[str, str]) -> bool:
    raise RuntimeError(f"no opinion on {headers.get('type', 'nothing')}")


def raises_on_paid(headers: Mapping[str, str]) -> bool:
    if headers.get("type") == "paid":
        raise RuntimeError("paid is too hard")
    return True


def writes(headers: dict[str, str]) -> bool:
    headers["seen"] = "yes"
    return True


def accepts_only_strings(headers: Mapping[str, str]) -> bool:
    """Truthy answers count; this one answers with a str."""
    return all(isinstance(value, str) for value in headers.values()) and bool(headers)
