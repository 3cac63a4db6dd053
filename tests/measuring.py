"""A plugin of pytest, for scripts/coverage: measures which branches the tests take that are about what decides.

So one run of the whole suite, on several processes, is also the measurement. Other tests are not measured: what
happens to be reached on the way, or by a random walk, is no test that reaches it again. It must be imported before the
package is, since what a module does when it is imported counts; `-p tests.measuring` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

_TESTS: Final = Path(__file__).parent
_ALWAYS: Final = ("engine/", "unit/", "process/test_sessions_", "process/test_waiting.py", "process/test_encoded.py")
_LOCAL: Final = "conformance/"
"""Of these the ones that have the broker in their own process, and say so in their name."""

assert "mpbroker" not in sys.modules, "what is measured was imported already"
_measured: Final = coverage.Coverage(data_suffix=True, messages=False)
# A process of which no test was measured is no news.
_measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
_measured.start()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-measured", action="store_true", help="run no test that is not measured")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--only-measured"):
        items[:] = [item for item in items if is_measured(item.path, item.name)]


def pytest_collection_finish() -> None:
    _measured.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if not is_measured(item.path, item.name):
        return (yield)
    _measured.start()
    try:
        return (yield)
    finally:
        _measured.stop()


def pytest_unconfigure() -> None:
    _measured.stop()
    _measured.save()


def is_measured(path: Path, name: str) -> bool:
    """Whether a test is about what decides."""
    where = path.relative_to(_TESTS).as_posix()
    return where.startswith(_ALWAYS) or (where.startswith(_LOCAL) and "local" in name)
