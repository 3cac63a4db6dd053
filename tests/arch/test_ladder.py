"""Who may import whom: the table, and that the package keeps to it."""

from __future__ import annotations

import pytest

from tests.arch.source import PACKAGE, Module, imports, modules, parse

VALUES = {"errors", "checks", "retry", "overflow", "messages", "deliveries", "filters", "settings"}
"""What everybody may import: names, numbers and texts, and nothing that does anything."""

PROCESS: dict[str, set[str]] = {
    # What both ends of a connection share.
    "shared": {"config", "frames", "handshake", "limits", "memory", "naming", "payloads", "peers", "private"},
    # What runs in a client: never the engine, nor what serves it.
    "client": {
        "channel",
        "connection",
        "consuming",
        "handle",
        "hook",
        "launch",
        "line",
        "manager",
        "presence",
        "proxy",
        "publishing",
    },
    # What decides in the broker process: it reads no clock and touches nothing outside.
    "deciding": {
        "acts",
        "clients",
        "desk",
        "effects",
        "encoded",
        "failures",
        "reports",
        "sessions",
        "subscribing",
        "verbs",
        "waiting",
    },
    # What moves the bytes and starts and ends the broker process.
    "serving": {"claims", "doors", "endings", "link", "loop", "main", "pace", "rings", "transit", "watches"},
}
"""The modules of ``process``, by where they run."""


def group(name: str) -> set[str]:
    return {f"process.{module}" for module in PROCESS[name]}


SHM = {"errors", "shm.*"}
"""What carries bytes through shared memory, and knows nothing of what they say."""

ENGINE = VALUES | {"engine.*"}
SHARED = VALUES | group("shared")
LOCAL = VALUES | {"_version", "api.*", "local", "local_pipeline", "pipeline.*", "push.*"}

MAY_IMPORT: dict[str, set[str]] = {
    "shared": SHARED | {"_version"},
    "client": SHARED | SHM | group("client") | {"_version", "api.*", "pipeline.*", "push.*"},
    "deciding": ENGINE
    | group("deciding")
    | {"_version", "process.frames", "process.handshake", "process.limits", "process.payloads"},
    "serving": ENGINE | SHM | SHARED | group("deciding") | group("serving") | {"_version"},
}

LADDER: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "checks": {"errors"},
    "retry": {"errors", "checks"},
    "overflow": {"errors", "checks"},
    "messages": {"errors", "checks"},
    "deliveries": {"errors", "checks", "messages"},
    "filters": {"errors", "checks"},
    "settings": VALUES,
    "engine.*": ENGINE,
    "push.*": VALUES | {"push.*"},
    "pipeline.*": VALUES | {"pipeline.*"},
    "api.*": VALUES | {"api.*", "pipeline.*", "push.*"},
    "local_pipeline": ENGINE | {"pipeline.*"},
    "local": ENGINE | {"api.*", "local_pipeline", "pipeline.*", "push.*"},
    "shm.*": SHM,
    "idempotent": VALUES,
    "process": set(),
    **{module: MAY_IMPORT[name] for name in PROCESS for module in group(name)},
    # Clients like any other: the public verbs, and the classes that stand for a broker process.
    "workers.*": VALUES | {"api.*", "process.manager", "process.memory", "process.proxy", "workers.*"},
    # The top: what users and people at a terminal see.
    "": LOCAL | group("client") | {"workers.*"},
    "testing.*": ENGINE | LOCAL | {"", "process.*", "testing.*"},
    # The stress is judged by the same checker as our own tests.
    "cli.*": LOCAL | {"", "process.*", "cli.*", "testing.*", "workers.*"},
    "__main__": {"cli.*"},
}
"""Module -> the modules it may import. ``engine.*`` is the package and all that is below it."""


def entry(name: str) -> str | None:
    """The line of the table that speaks of a module."""
    if name in LADDER:
        return name
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        pattern = ".".join([*parts[:length], "*"])
        if pattern in LADDER:
            return pattern
    return None


def allows(patterns: set[str], name: str) -> bool:
    return any(
        name == pattern or (pattern.endswith(".*") and f"{name}.".startswith(pattern[:-1])) for pattern in patterns
    )


def target(imported: str, known: set[str]) -> str | None:
    """The module of the package that an import reaches; None when it reaches none."""
    parts = imported.split(".")
    if parts[0] != PACKAGE:
        return None
    for length in range(len(parts), 1, -1):
        name = ".".join(parts[1:length])
        if name in known:
            return name
    return ""


def violations(module: Module, known: set[str]) -> list[str]:
    line = entry(module.name)
    if line is None:
        return [f"{PACKAGE}.{module.name} is not in the table: say what it may import"]
    found = []
    for item in imports(module):
        reached = target(item.name, known)
        if reached is not None and reached != module.name and not allows(LADDER[line], reached):
            found.append(f"{module.path}:{item.line}: {module.name or PACKAGE} imports {item.name}")
    return found


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name or PACKAGE)
def test_no_module_imports_what_is_above_it(module: Module) -> None:
    assert violations(module, {other.name for other in modules()}) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module.name for module in modules()}
    below = {
        module.name: {target(item.name, known) for item in imports(module) if not item.types_only} - {module.name}
        for module in modules()
        # These are imported by whoever imports what is in them, so for them it has no meaning.
        if not module.is_package
    }
    while below:
        lowest = {name for name, reached in below.items() if not reached & below.keys()}
        assert lowest, f"a circle among {sorted(below)}"
        for name in lowest:
            del below[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("engine.ready", "import mpbroker.process.loop"),
        ("engine.ready", "from mpbroker import local"),
        ("engine.ready", "from ..process import sessions"),
        ("engine.ready", "def f():\n    from mpbroker.api import BrokerAPI"),
        ("process.proxy", "from mpbroker.engine.broker import Engine"),
        ("process.proxy", "from mpbroker import MessageBroker"),
        ("process.manager", "from . import main"),
        ("process.main", "from mpbroker.process import proxy"),
        ("push.dispatcher", "from mpbroker.engine.broker import Engine"),
        ("errors", "from mpbroker import checks"),
        ("brand_new", "x = 1"),
    ],
)
def test_a_planted_offender_is_found(name: str, text: str) -> None:
    known = {"", "api", "checks", "local", "engine", "engine.broker", "process", "process.loop"}
    known |= {"process.main", "process.proxy", "process.sessions"}
    assert violations(parse(text, name), known)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("engine.broker", "from mpbroker.engine.ready import Ready\nfrom . import leases"),
        ("engine.broker", "from mpbroker import checks\nimport threading"),
        ("process.main", "from mpbroker.engine.broker import Engine\nfrom . import loop"),
        ("cli.serve", "import mpbroker\nfrom mpbroker.process import main"),
    ],
)
def test_what_the_table_allows_passes(name: str, text: str) -> None:
    known = {"", "checks", "engine", "engine.broker", "engine.leases", "engine.ready", "process"}
    known |= {"process.loop", "process.main"}
    assert violations(parse(text, name), known) == []
