"""Every attack that SECURITY.md names has the test that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN_BY = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_each_attack_is_shown_by_a_test_that_exists() -> None:
    _, _, section = (ROOT / "SECURITY.md").read_text().partition("## Attacks")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    assert len(lines) > 15
    for line in lines:
        found = SHOWN_BY.findall(line)
        assert found, line
        for file, name in found:
            tree = ast.parse((ROOT / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, name)
