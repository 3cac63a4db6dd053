"""The build hook of the wheel: with MPBROKER_COMPILE=1 in the environment it has the hot modules compiled, if it can.

Without that it does nothing, and needs nothing. Where it can't, the wheel is the pure one, and a line says why. An
editable install is never compiled: it is there to be changed.
"""

from __future__ import annotations

import os
import runpy
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
        if not is_asked() or self._lacking():
            return []
        # mypyc is part of mypy; it looks at the types of what mpbroker needs.
        return ["mypy>=2.4", "setuptools>=70", *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not is_asked():
            return
        reason = self._lacking()
        if not reason:
            self._folder = tempfile.TemporaryDirectory(prefix="mpbroker-compile.")
            # In a process of its own, since it changes folders and imports what it made.
            command = [sys.executable, self._script, self.root, self._folder.name]
            if subprocess.run(command, check=False).returncode:
                reason = "what it lacks is said above"
        if reason:
            print(f"MPBROKER_COMPILE=1, but mpbroker is not compiled: {reason}", file=sys.stderr)
            return
        made = list(Path(self._folder.name).rglob("*.so"))
        build_data["force_include"].update({str(path): str(path.relative_to(self._folder.name)) for path in made})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _script(self) -> Path:
        return Path(self.root, "scripts", "_compile.py")

    def _lacking(self) -> str:
        return str(runpy.run_path(str(self._script))["lacking"]())


def is_asked() -> bool:
    return os.environ.get("MPBROKER_COMPILE", "") not in {"", "0"}
