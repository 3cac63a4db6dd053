"""What mypyc has to be told in the source. Never compiled itself, and needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[type], type]:
        """Change nothing: only the compiler reads it."""
        return lambda kind: kind


__all__ = ["mypyc_attr"]
