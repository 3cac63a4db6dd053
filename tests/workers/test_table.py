"""The table of deaths says what the documentation says."""

from __future__ import annotations

import pytest

from tests.workers.table import rows


@pytest.mark.timeout(180)
def test_the_table_of_deaths() -> None:
    header, *found = rows()
    seen = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in found}
    for how, words in {
        "SIGKILL": "signal 9 (SIGKILL), possibly out of memory",
        "segfault": "signal 11 (SIGSEGV)",
        "exit": "exit code 3",
    }.items():
        assert seen[how]["message"] == f"retries_exhausted after 2: worker died: worker died: {words}"
        assert seen[how]["caller"] == f"WorkerDied: worker died: {words}"
        assert words in seen[how]["figures"]
    assert seen["hang"]["message"].endswith("failed: timeout: it took more than 0.5 s; the worker was killed")
    assert seen["hang"]["caller"].startswith("WorkerDied: timeout")
    assert seen["supervisor killed"]["message"] == seen["killed"]["message"] == "with another, counted"
    assert seen["released"]["message"] == seen["drained, grace over"]["message"] == "with another, uncounted"
