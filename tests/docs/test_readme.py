"""What the documentation shows works as it is shown."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_in, commands, pages, programs

LIMIT_S = 60

PROGRAMS = [item for page in pages() for item in programs(blocks_in(page))]
CONSOLES = [
    block
    for page in pages()
    for block in blocks_in(page)
    if block.language == "console" and not block.shown_only and commands(block)
]


def ids(blocks: list[Block]) -> list[str]:
    return [str(block) for block in blocks]


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(("block", "program"), PROGRAMS, ids=ids([block for block, _ in PROGRAMS]))
def test_a_python_block_runs(block: Block, program: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(program, encoding="utf-8")
    done = run([sys.executable, str(script)], tmp_path)
    assert done.returncode == 0, f"{block}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("block", CONSOLES, ids=ids(CONSOLES))
def test_a_console_block_runs(block: Block, tmp_path: Path) -> None:
    servers: list[subprocess.Popen[str]] = []
    try:
        for command in commands(block):
            words = shlex.split(command, comments=True)
            if "serve" in words:
                servers.append(serve([word for word in words if word != "&"], tmp_path))
                continue
            done = run([sys.executable, "-m", *words], tmp_path)
            assert done.returncode == 0, f"{block}: {command}\n{done.stdout}\n{done.stderr}"
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=LIMIT_S)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def serve(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start `mpbroker serve` and return once it says that it is ready."""
    server = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    said = ""
    for line in server.stdout:
        said += line
        if "ready" in line:
            return server
    server.communicate(timeout=LIMIT_S)
    raise AssertionError(f"mpbroker serve ended before it was ready:\n{said}")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_link_to_a_file_of_the_project_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    broken = [
        link
        for link in links
        if not link.startswith(("#", "mailto:")) and not (page.parent / link.split("#")[0]).exists()
    ]
    assert broken == []


def test_every_page_that_package_indexes_show_is_there() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith("# mpbroker")


EXAMPLE = """
Text.

```python
a = 1
```

<!-- continues -->
```python
assert a == 1
```

<!-- not run: it needs a second machine -->
```python
raise SystemExit(1)
```

1. In a list:
   ```console
   $ mpbroker topics list \\
       --json
   []
   $ scripts/demo
   ```
"""


def test_blocks_are_found_with_what_is_said_about_them() -> None:
    found = blocks_in(Path("page.md"), EXAMPLE)
    assert [block.language for block in found] == ["python"] * 3 + ["console"]
    assert [program.split() for _, program in programs(found)] == [
        ["a", "=", "1"],
        ["a", "=", "1", "assert", "a", "==", "1"],
    ]
    assert commands(found[3]) == ["mpbroker topics list     --json"]
