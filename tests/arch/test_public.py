"""What the package offers is there, and says what it does."""

from __future__ import annotations

import inspect
import types

import pytest

import mpbroker
from mpbroker import _version

NAMES: list[str] = sorted(getattr(mpbroker, "__all__", ()))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_is_offered_exists(name: str) -> None:
    assert hasattr(mpbroker, name)


def test_every_name_that_exists_is_offered() -> None:
    there = {
        name
        for name, value in vars(mpbroker).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert there <= set(NAMES)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_every_offered_class_and_function_says_what_it_does(name: str) -> None:
    value = getattr(mpbroker, name)
    if not (inspect.isclass(value) or callable(value)):
        return
    doc = value.__doc__ if not inspect.isclass(value) else vars(value).get("__doc__")
    assert doc
    # What dataclass and Enum write by themselves says nothing.
    assert not doc.startswith(f"{name}(")
    assert doc != "An enumeration."


@pytest.mark.parametrize("name", NAMES)
def test_every_public_method_says_what_it_does(name: str) -> None:
    value = getattr(mpbroker, name)
    if not inspect.isclass(value):
        return
    silent = [
        method
        for method, member in inspect.getmembers(value)
        if not method.startswith("_")
        and callable(member)
        and str(getattr(member, "__module__", "")).startswith("mpbroker")
        and not inspect.getdoc(member)
    ]
    assert silent == []


def test_the_version_is_told_in_one_place() -> None:
    assert vars(mpbroker)["__version__"] == _version.__version__
