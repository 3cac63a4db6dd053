"""What holds for every test: a broker folder of its own, and nothing left behind."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from mpbroker import deliveries
from mpbroker.testing import FakeClock, LeakCheck
from mpbroker.testing.leaks import standing_helpers

# A busy machine is no defect, so nothing here judges by the time it took. CI draws the same
# examples every time; elsewhere each run draws new ones.
settings.register_profile(
    "mpbroker",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mpbroker")


# In the background of a script and under nohup these are ignored, and programs that a test starts are to see them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


IS_COMPILED = not str(deliveries.__file__).endswith(".py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the compiled build only what is not patched can be tested; see scripts/compiled."""
    if IS_COMPILED:
        for item in items:
            for mark in item.iter_markers("patches"):
                item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}: in the compiled build that has no effect"))


def _short_folder() -> Path:
    """Below /tmp wherever that is: the path of a Unix socket may have about 100 bytes."""
    return Path(tempfile.mkdtemp(prefix="mpb-", dir="/tmp" if Path("/tmp").is_dir() else None))


@pytest.fixture(scope="session", autouse=True)
def _session_folder() -> Iterator[None]:
    """Fixtures that outlive a test find a folder too, and never the user's own."""
    folder = _short_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPBROKER_DIR", str(folder))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def broker_folder(request: pytest.FixtureRequest, _session_folder: None) -> Iterator[Path]:
    """The test's own MPBROKER_DIR; after the test, nothing that it started may be left.

    ``@pytest.mark.leaves("files")`` is for a test that kills a broker, which then can't tidy up.
    """
    folder = _short_folder()
    leaves = [str(kind) for mark in request.node.iter_markers("leaves") for kind in mark.args]
    standing = frozenset(psutil.pids())
    check = LeakCheck([folder], ignore=leaves).start()
    logger = logging.getLogger("mpbroker")
    level = logger.level
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MPBROKER_DIR", str(folder))
            yield folder
        if "descriptors" in leaves:
            # Closed by the collector, with a warning: now, while it is this test's, and not in whichever comes later.
            gc.collect()
        try:
            check.verify()
            assert (logger.level, logger.propagate) == (level, True), "others would not see what is logged"
        except BaseException:
            _end_children(standing)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_children(standing: frozenset[int]) -> None:
    """Don't let one test's leak hang the interpreter's exit, or show up in other tests."""
    for process in psutil.Process().children(recursive=True):
        if process.pid not in standing | standing_helpers():
            try:
                process.kill()
                process.wait(5)
            except psutil.Error:
                continue


@pytest.fixture
def clock() -> FakeClock:
    """A clock that only the test moves; it starts at 1000."""
    return FakeClock()
