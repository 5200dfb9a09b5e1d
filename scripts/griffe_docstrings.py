"""Docstrings for the API reference as they are at run time, where a decorator fills them in."""

import inspect
from importlib import import_module
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Replaces docstrings with `{}`, where the decorator `documented` inserts a table's options."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Take the docstring of the imported object."""
        if obj.is_alias or not obj.docstring or "\n    {}\n" not in f"{obj.docstring.value}\n":
            return
        value = getattr(import_module(obj.module.path), obj.name)
        obj.docstring.value = inspect.getdoc(value) or ""
