"""Code blocks of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"<!--\s*(?P<text>[^>]*?)\s*-->\s*\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    A comment right before it says how it is meant: ``<!-- continues -->``: it goes on where the
    block before it in the same file ended. ``<!-- not run: reason -->``: it is only shown.
    """

    path: Path
    line: int
    language: str
    text: str
    remark: str

    @property
    def continues(self) -> bool:
        return self.remark == "continues"

    @property
    def shown_only(self) -> bool:
        return self.remark.startswith("not run: ")

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def pages() -> list[Path]:
    """Every page of documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_in(path: Path, content: str | None = None) -> list[Block]:
    content = path.read_text(encoding="utf-8") if content is None else content
    found = []
    for fence in _FENCE.finditer(content):
        before = content[: fence.start()]
        remark = _REMARK.search(before)
        indent = len(fence["indent"])
        text = "".join(line[indent:] or "\n" for line in fence["text"].splitlines(keepends=True))
        line = before.count("\n") + 1
        found.append(Block(path, line, fence["language"], text, remark["text"] if remark else ""))
    return found


def programs(found: list[Block]) -> list[tuple[Block, str]]:
    """The Python blocks of one page as programs that stand alone."""
    result = []
    so_far = ""
    for block in found:
        if block.language != "python":
            continue
        so_far = f"{so_far}\n{block.text}" if block.continues else block.text
        if not block.shown_only:
            result.append((block, so_far))
    return result


def commands(block: Block) -> list[str]:
    """The ``$ mpbroker …`` lines of a console block, without the prompt."""
    lines = block.text.replace("\\\n", "").splitlines()
    return [line[2:].strip() for line in lines if line.startswith("$ mpbroker")]
