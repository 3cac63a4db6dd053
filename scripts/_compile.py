"""Compile the hot modules with mypyc. Usage: _compile.py SOURCE TARGET.

SOURCE has mpbroker/ in it, and is not changed; TARGET gets the compiled modules, each in its place. The build of a
compiled wheel runs it, and scripts/compiled. It needs mypy, setuptools, what mpbroker needs, and a C compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ("deliveries", "pipeline/batches", "pipeline/consumer", "pipeline/filling", "process/payloads")
"""Where a client's time for each message goes. What is done for a batch gains too little; what spins, or is patched by
tests, loses more: compiled loops let no other thread run, and no signal handler."""

SETTINGS = """[mypy]
python_version = 3.11
explicit_package_bases = True
"""

CHECK = """
import importlib, sys
from types import MemberDescriptorType
bad, compiled = [], 0
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    assert not module.__file__.endswith(".py"), f"{name} was not compiled"
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == name:
            compiled += 1
            if isinstance(vars(kind).get("__weakref__"), MemberDescriptorType):
                bad.append(f"{name}.{kind.__name__}")
assert compiled
if bad:
    sys.exit(f"weak references to these would dangle, as mypyc does not clear them: {', '.join(bad)}; "
        "a compiled class must not inherit from one that is not compiled, not even from ABC")
"""
"""mypyc gives a weak reference slot, as a plain member, to each class with a base that it has not compiled, and its
deallocator does not clear what refers to it. Classes that Python makes have a getset there, and are safe."""


def main() -> int:
    source, target = (Path(each).absolute() for each in sys.argv[1:])
    missing = [name for name in ("mypyc", "setuptools", "msgspec") if importlib.util.find_spec(name) is None]
    if missing:
        return fail(f"{', '.join(missing)} cannot be imported by {sys.executable}")
    with tempfile.TemporaryDirectory(prefix="mpbroker-compile.") as folder:
        work = Path(folder)
        # Apart from pyproject.toml, which setuptools would read, and from everything else that is not ours to change.
        shutil.copytree(source / "mpbroker", work / "mpbroker", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        os.chdir(work)
        try:
            build()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, nothing was made
            return fail(f"{type(error).__name__}: {error}")
        names = [f"mpbroker.{module.replace('/', '.')}" for module in MODULES]
        environment = {**os.environ, "PYTHONPATH": folder}
        if subprocess.run([sys.executable, "-c", CHECK, *names], env=environment, check=False).returncode:
            return fail("what was compiled is not safe")
        for made in [*Path().glob("*.so"), *Path("mpbroker").rglob("*.so")]:
            (target / made).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made, target / made)
        os.chdir(target)
    return 0


def build() -> None:
    """Compile in the current folder."""
    from mypyc.build import mypycify
    from setuptools import setup

    Path("mypy.ini").write_text(SETTINGS, encoding="utf-8")
    setup(
        name="mpbroker",
        packages=[],
        ext_modules=mypycify([f"mpbroker/{module}.py" for module in MODULES], group_name="mpbroker", opt_level="3"),
        script_args=["--quiet", "build_ext", "--inplace", "--build-temp", "build"],
    )


def fail(reason: str) -> int:
    print(
        f"mpbroker could not be compiled: {reason}\n"
        "MPBROKER_COMPILE=1 needs a C compiler, Python's headers, mypy and setuptools; without it nothing is compiled.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
