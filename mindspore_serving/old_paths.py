"""Import paths of older versions, kept for old scripts.

`legacy` contains each file at its old path. Packages that have taken over a name search that
directory too (`directory`), and take old functions from it (`forward`).
"""

from collections.abc import Callable, Collection
from importlib import import_module
from os.path import dirname
from typing import Any


def directory(package: str) -> str:
    """Return the directory of the old modules of `package`."""
    return f"{dirname(__file__)}/legacy/{package}"


def forward(package: str, names: Collection[str]) -> Callable[[str], Any]:
    """Return a `__getattr__` of `package` that takes `names` from its old module."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module 'mindspore_serving.{package}' has no attribute {name!r}")
        return getattr(import_module(f"mindspore_serving.legacy.{package}"), name)

    return get
