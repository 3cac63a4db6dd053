"""The build hook of the wheel: with MPBROKER_COMPILE=1 in the environment it has the hot modules compiled.

Without that it does nothing, and needs nothing. An editable install is never compiled: it is there to be changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Has a copy of the package compiled, and takes what came of it into the wheel."""

    PLUGIN_NAME = "custom"
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        if not is_asked():
            return []
        # mypyc is part of mypy; it looks at the types of what mpbroker needs.
        return ["mypy>=2.4", "setuptools>=70", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not is_asked():
            return
        root = Path(self.root)
        self._folder = tempfile.TemporaryDirectory(prefix="mpbroker-compile.")
        folder = Path(self._folder.name)
        # In a process of its own, since it changes folders and imports what it made.
        if subprocess.run([sys.executable, root / "scripts" / "_compile.py", root, folder], check=False).returncode:
            raise SystemExit("MPBROKER_COMPILE=1, and mpbroker could not be compiled; the reason is above")
        made = list(folder.rglob("*.so"))
        build_data["force_include"].update({str(path): str(path.relative_to(folder)) for path in made})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def is_asked() -> bool:
    return os.environ.get("MPBROKER_COMPILE", "") not in {"", "0"}
