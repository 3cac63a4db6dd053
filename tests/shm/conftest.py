"""Segments are there on Linux; elsewhere these laws have no subject."""

from __future__ import annotations

import sys

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "shm" and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="shared memory is for Linux"))
