"""Compile the hot modules with mypyc. Usage: _compile.py [SOURCE TARGET].

SOURCE has mpbroker/ in it, and is not changed; TARGET gets the compiled modules, each in its place. The build hook of
the wheel runs it. Without arguments it says what this machine lacks for it, and fails if that is anything.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

MODULES = ("deliveries", "pipeline/batches", "pipeline/consumer", "pipeline/filling", "process/payloads")
"""Where a client's time for each message goes. What is done for a batch gains too little; what spins loses more:
compiled loops let no other thread run, and no signal handler."""

SETTINGS = """[mypy]
python_version = 3.11
explicit_package_bases = True
"""

CHECK = """
import importlib, sys
from types import MemberDescriptorType
import mpbroker, mpbroker.process.main
bad, compiled = [], 0
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    assert not module.__file__.endswith(".py"), f"{name} was not compiled"
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == name:
            compiled += 1
            has_instances = not getattr(kind, "_is_protocol", False) or kind.__subclasses__()
            if has_instances and isinstance(vars(kind).get("__weakref__"), MemberDescriptorType):
                bad.append(f"{name}.{kind.__name__}")
assert compiled
if bad:
    sys.exit(f"weak references to these would dangle, as mypyc does not clear them: {', '.join(bad)}; "
        "a compiled class must not inherit from one that is not compiled, not even from ABC")
"""
"""mypyc gives a weak reference slot, as a plain member, to each class with a base that it has not compiled, and its
deallocator does not clear what refers to it. Classes that Python makes have a getset there, and are safe; a protocol
that nobody inherits from has no instances."""


def lacking() -> str:
    """What this machine needs and lacks, or nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler!r} here"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.is_file():
        return f"the headers of Python are not here ({headers})"
    return ""


def main() -> int:
    reason = lacking()
    if not sys.argv[1:]:
        print(reason, end="\n" if reason else "")
    elif not reason:
        reason = compile_modules(*(Path(each).absolute() for each in sys.argv[1:]))
        print(reason, end="\n" if reason else "", file=sys.stderr)
    return 1 if reason else 0


def compile_modules(source: Path, target: Path) -> str:
    """Why it could not be done, or nothing."""
    missing = [name for name in ("mypyc", "setuptools", "msgspec") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} cannot be imported by {sys.executable}"
    with tempfile.TemporaryDirectory(prefix="mpbroker-compile.") as folder:
        work = Path(folder)
        # Apart from pyproject.toml, which setuptools would read, and from everything else that is not ours to change.
        shutil.copytree(source / "mpbroker", work / "mpbroker", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        os.chdir(work)
        try:
            build()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, nothing was made
            return f"{type(error).__name__}: {error}"
        names = [f"mpbroker.{module.replace('/', '.')}" for module in MODULES]
        environment = {**os.environ, "PYTHONPATH": folder}
        if subprocess.run([sys.executable, "-c", CHECK, *names], env=environment, check=False).returncode:
            return "what was compiled is not safe"
        for made in [*Path().glob("*.so"), *Path("mpbroker").rglob("*.so")]:
            (target / made).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made, target / made)
        os.chdir(target)
    return ""


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


if __name__ == "__main__":
    sys.exit(main())
