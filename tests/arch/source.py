"""The package as text: modules, what they import, what runs when they are imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "mpbroker"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file. Its name is relative to the package: ``engine.ready``; "" is the package."""

    name: str
    path: Path
    tree: ast.Module
    is_package: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """One imported thing, by its full dotted name: ``mpbroker.errors.QueueFull``."""

    name: str
    line: int
    types_only: bool


def parse(text: str, name: str = "planted", *, is_package: bool = False) -> Module:
    return Module(name, Path(f"{name}.py"), ast.parse(text), is_package)


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the package."""
    folder = ROOT / PACKAGE
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        found.append(Module(name, path, tree, is_package))
    return tuple(found)


def imports(module: Module) -> Iterator[Import]:
    """What the module imports, at any level and under any condition."""
    for_types = {
        node
        for guard in ast.walk(module.tree)
        if isinstance(guard, ast.If) and "TYPE_CHECKING" in ast.unparse(guard.test)
        for statement in guard.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            base = ""
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node) + "."
        else:
            continue
        for alias in node.names:
            yield Import(base + alias.name, node.lineno, node in for_types)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = [PACKAGE, *module.name.split(".")] if module.name else [PACKAGE]
    up = node.level - (1 if module.is_package else 0)
    parts = parts[: len(parts) - up]
    return ".".join([*parts, node.module] if node.module else parts)


def run_at_import(module: Module) -> Iterator[ast.AST]:
    """Every node that is evaluated when the module is imported.

    Bodies of functions are not, nor annotations, nor what stands under a condition on the platform
    or on what a module offers.
    """
    pending: list[ast.AST] = list(module.tree.body)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_evaluated(node))


def _evaluated(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = [default for default in node.args.kw_defaults if default is not None]
        return [*node.decorator_list, *node.args.defaults, *defaults]
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults]
    if isinstance(node, ast.AnnAssign):
        return [node.target] if node.value is None else [node.target, node.value]
    if isinstance(node, ast.If) and _is_guard(node.test):
        return [*node.orelse]
    return list(ast.iter_child_nodes(node))


def _is_guard(test: ast.expr) -> bool:
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    return bool(names & {"TYPE_CHECKING", "platform", "hasattr"})
