"""Import paths of older versions, kept so that scripts of that time run.

A file lies in `legacy` as it once lay in the package.  The packages that have taken over such a
name search that directory too (`directory`), and take functions of that time from it (`forward`).
"""

from collections.abc import Callable, Collection
from importlib import import_module
from os.path import dirname
from typing import Any


def directory(package: str) -> str:
    """Return where the old modules of `package` are."""
    return f"{dirname(__file__)}/legacy/{package}"


def forward(package: str, names: Collection[str]) -> Callable[[str], Any]:
    """Return a `__getattr__` of `package` that takes `names` from what it once was."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module 'mindspore_serving.{package}' has no attribute {name!r}")
        return getattr(import_module(f"mindspore_serving.legacy.{package}"), name)

    return get
