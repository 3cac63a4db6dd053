"""What workers run: found by name or by pickle, and where it comes from.

Owns how a handler travels to a worker without the worker running the user's script, unless the handler is in it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any, Final, cast

from mpbroker.errors import HandlerError, MpbrokerError

MAIN: Final = b"__main__"

_GUARD: Final = (
    "workers import the program again to find it, and the program starts workers while it is imported: put what "
    'starts them below `if __name__ == "__main__":`, or the handler in a module of its own'
)

_importing_main = False
_has_main = False


@dataclass(frozen=True, slots=True)
class Main:
    """Where the program of the process that made a pool is; workers import it when something of theirs is in it."""

    name: str | None
    path: str | None
    arguments: tuple[str, ...]


def main_program() -> Main | None:
    """Of this process; None for one that cannot be imported: a REPL, standard input, -c."""
    told = spawn.get_preparation_data("mpbroker")
    name, path = told.get("init_main_from_name"), told.get("init_main_from_path")
    if name is None and (path is None or not os.path.exists(path)):
        return None
    return Main(name, path, tuple(sys.argv))


def check_not_importing() -> None:
    """Raises HandlerError in a worker that imports its program, where that is about to start workers."""
    if _importing_main:
        raise HandlerError("the handler", _GUARD)


def import_main(main: Main | None, what: str) -> None:
    """Make the user's program this worker's __main__, as multiprocessing does. Raises HandlerError."""
    global _importing_main, _has_main  # noqa: PLW0603 - an import runs code that knows nothing of us
    if main is None:
        raise HandlerError(what, "it is in a program that has no file (a REPL, standard input, -c): put it in a module")
    if _has_main:
        return
    _importing_main = True
    fixup = cast("Any", spawn)
    try:
        sys.argv[:] = main.arguments
        if main.name is not None:
            fixup._fixup_main_from_name(main.name)
        else:
            fixup._fixup_main_from_path(main.path)
        _has_main = True
    except HandlerError:
        raise
    except (Exception, SystemExit) as error:
        raise HandlerError(what, f"its program cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _importing_main = False


def by_name(text: str) -> Any:
    """What ``module:attribute`` names. Raises HandlerError."""
    module, colon, attribute = text.partition(":")
    if not colon or not module or not attribute:
        raise HandlerError(repr(text), "it is not of the form module:function")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        folders = ", ".join(repr(each) for each in sys.path[:3])
        raise HandlerError(text, f"{error}; modules are looked for in {folders}, …") from error
    except (Exception, SystemExit) as error:
        raise HandlerError(text, f"importing {module} failed: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise HandlerError(text, f"module {module} has no {attribute!r}") from None
    return found


@dataclass(frozen=True, slots=True)
class Target:
    """A callable for another process. name: of a function, for messages. pickled: empty where the name says all."""

    name: str
    pickled: bytes
    main: Main | None

    @classmethod
    def of(cls, handler: object) -> Target:
        """Raises HandlerError for what no worker could call, and TypeError."""
        if isinstance(handler, str):
            return cls(handler, b"", None)
        if not callable(handler):
            raise TypeError(f"handler must be a callable or 'module:function', not {type(handler).__name__}")
        name = f"{getattr(handler, '__module__', '?')}:{getattr(handler, '__qualname__', type(handler).__qualname__)}"
        try:
            pickled = pickle.dumps(handler)
        except Exception as error:
            reason = f"it cannot be pickled ({error}); give a function that its module has under its name"
            raise HandlerError(name, reason) from error
        main = None
        if MAIN in pickled:
            main = main_program()
            if main is None:
                import_main(None, name)
        return cls(name, pickled, main)

    def load(self) -> Callable[..., object]:
        """In a worker. Raises HandlerError."""
        if not self.pickled:
            found = by_name(self.name)
        else:
            if self.main is not None:
                import_main(self.main, self.name)
            try:
                found = pickle.loads(self.pickled)
            except MpbrokerError:
                raise
            except (Exception, SystemExit) as error:
                raise HandlerError(self.name, f"{type(error).__name__}: {error}") from error
        if not callable(found):
            raise HandlerError(self.name, f"it is not callable, but {type(found).__name__}")
        return cast("Callable[..., object]", found)
