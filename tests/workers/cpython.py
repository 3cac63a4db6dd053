"""CPython's own tests of executors, run from its installation against ours. Run by scripts/executor-conformance."""

from __future__ import annotations

import importlib
import sys
import unittest
from types import ModuleType
from typing import Any, Final

import mpbroker

PACKAGE: Final = "test.test_concurrent_futures"

CASES: Final = (
    ("executor", "ExecutorTest"),
    ("test_as_completed", "AsCompletedTests"),
    ("test_wait", "WaitTests"),
    ("test_shutdown", "ExecutorShutdownTest"),
    ("test_init", "InitializerMixin"),
    ("test_init", "FailingInitializerMixin"),
)

_PROGRAM: Final = (
    "it runs a program that imports the executor from concurrent.futures by its name; test_executor has its law"
)

LEFT_OUT: Final = {
    ("ExecutorShutdownTest", "test_interpreter_shutdown"): _PROGRAM,
    ("ExecutorShutdownTest", "test_submit_after_interpreter_shutdown"): _PROGRAM,
    ("ExecutorShutdownTest", "test_hang_gh83386"): _PROGRAM,
    ("FailingInitializerMixin", "test_initializer"): (
        "it wants the failure in the log of concurrent.futures; ours is in the error, which test_executor looks at"
    ),
}


def classes() -> list[type[unittest.TestCase]]:
    """The test classes, with our executor. Raises ImportError where this Python has none."""
    util = _part("util")
    ours = type("MpbrokerMixin", (util.ExecutorMixin,), {"executor_type": mpbroker.Executor})
    found = []
    for module, name in CASES:
        mixin: Any = getattr(_part(module), name)
        bases = (mixin, ours, util.BaseTestCase)
        found.append(type(f"Mpbroker{name}", bases, {"__module__": __name__, "kind": name}))
    return found


def _part(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


def main() -> int:
    try:
        made = classes()
    except ImportError as error:
        sys.stdout.write(f"not here: Python {sys.version.split()[0]} has no {PACKAGE} to run ({error}); 3.13 has\n")
        return 2
    suite, left_out = unittest.TestSuite(), []
    for each in made:
        for name in unittest.defaultTestLoader.getTestCaseNames(each):
            kind = each.kind  # type: ignore[attr-defined]
            reason = LEFT_OUT.get((kind, name))
            if reason is None:
                suite.addTest(each(name))
            else:
                left_out.append(f"left out: {kind}.{name}: {reason}")
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite)
    bad = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    sys.stdout.writelines(f"{line}\n" for line in left_out)
    sys.stdout.writelines(f"skipped: {test}: {reason}\n" for test, reason in result.skipped)
    sys.stdout.write(
        f"Python {sys.version.split()[0]}: {result.testsRun} ran, {result.testsRun - bad - skipped} passed, "
        f"{bad} failed, {skipped} skipped themselves, {len(left_out)} left out\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
