"""A broker of a test's own, and folders for the tests of names: short enough for sockets, and reachable by others."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker import BrokerManager, BrokerProxy
from tests.process.holders import NOBODY


@pytest.fixture
def manager() -> Iterator[BrokerManager]:
    with BrokerManager() as manager:
        yield manager


@pytest.fixture
def broker(manager: BrokerManager) -> BrokerProxy:
    return manager.broker()


@pytest.fixture
def outer() -> Iterator[Path]:
    """A folder that any user may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="mpb-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def base(outer: Path) -> Path:
    """Where the base folder of brokers would be; nothing is there yet."""
    return outer / "run"


@pytest.fixture
def other(outer: Path) -> Path:
    """An empty folder that nothing may be written to by way of a link."""
    folder = outer / "other"
    folder.mkdir(0o700)
    return folder


@pytest.fixture
def place_for_nobody(outer: Path) -> Path:
    """A folder that belongs to another user."""
    folder = outer / "theirs"
    folder.mkdir(0o755)
    os.chown(folder, NOBODY, NOBODY)
    return folder
