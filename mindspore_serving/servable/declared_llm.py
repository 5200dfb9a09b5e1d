"""Language models that a servable_config.py declares, read from its source.

The master does not run that file, but has to know before a worker does: over how many processes a
model is cut, and whether an option is misspelt.
"""

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.hub.resolve import PATH_OPTIONS
from mindspore_serving.servable.literals import names_of, value_of

SIZES = ("tensor_parallel", "pipeline_parallel")
ARGUMENTS = ("path", "params")  # of `declare_llm` that are no options
_COMPUTED = (ValueError, KeyError, IndexError, TypeError)  # of a value that is no literal


@dataclass(frozen=True, slots=True)
class DeclaredOptions:
    """Options of one call of `declare_llm`: all names, and the values that are literals."""

    line: int
    names: tuple[str, ...]
    literals: dict[str, Any]
    is_literal: bool  # all values are literals, and there is no `**`


def declared_ranks(path: str) -> tuple[int, int]:
    """Return the number of ranks and of stages of `declare_llm` in the servable_config.py `path`.

    Literals count, and names that are assigned literals; of several calls the one with the most
    ranks.  1 for sizes that are computed, and for a file that a worker will refuse.
    """
    tree = _parse(path)
    names = names_of(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return max((_ranks(call, names) for call in calls if _is_declaration(call)), default=(1, 1))


def declared_options(path: str) -> list[DeclaredOptions]:
    """Return the options of each `declare_llm` at the top level of the file at `path`.

    A call in a branch or a function is left out, as it may never run; so are values of names,
    which may have been assigned again.
    """
    calls = (getattr(node, "value", None) for node in _parse(path).body)
    return [
        _options(call) for call in calls if isinstance(call, ast.Call) and _is_declaration(call)
    ]


def declared_paths(path: str) -> list[tuple[str, str]]:
    """Return the literal paths or names of models at the top level of a file.

    Each has the directory that it is relative to: "", the working directory, for adapters.
    """
    values: list[tuple[Any, str]] = []
    directory = os.path.dirname(path)
    for node in _parse(path).body:
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or _name_of(call) not in (
            "declare_llm",
            "declare_hf_model",
        ):
            continue
        arguments = {str(keyword.arg): keyword.value for keyword in call.keywords}
        nodes = [*call.args[:1], *map(arguments.get, ("path", *PATH_OPTIONS))]
        adapters = arguments.get("adapters")
        nodes_of_adapters = adapters.values if isinstance(adapters, ast.Dict) else []
        values += [(node.value, directory) for node in nodes if isinstance(node, ast.Constant)]
        values += [(node.value, "") for node in nodes_of_adapters if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value[0], str)]


def _parse(path: str) -> ast.Module:
    """Parse a file; one that cannot be parsed is empty, as the worker reports its error."""
    try:
        with open(path, encoding="utf-8") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _is_declaration(call: ast.Call) -> bool:
    return _name_of(call) == "declare_llm"


def _name_of(call: ast.Call) -> str:
    """Return the name of the function that is called, without its module."""
    function = call.func
    return str(getattr(function, "attr", "") or getattr(function, "id", ""))


def _options(call: ast.Call) -> DeclaredOptions:
    options = [keyword for keyword in call.keywords if keyword.arg not in ARGUMENTS]
    literals = {}
    for keyword in options:
        try:
            literals[str(keyword.arg)] = value_of(keyword.value if keyword.arg else None, {})
        except _COMPUTED:
            continue
    names = tuple(keyword.arg for keyword in options if keyword.arg)
    return DeclaredOptions(call.lineno, names, literals, len(literals) == len(options))


def _ranks(call: ast.Call, names: dict[str, object]) -> tuple[int, int]:
    options: dict[str, object] = {}
    for keyword in call.keywords:
        try:
            value = value_of(keyword.value, names)
        except _COMPUTED:
            continue
        options |= {keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {}
    return ranks_of(options)


def ranks_of(options: Mapping[str, object]) -> tuple[int, int]:
    """Return the number of ranks and of stages of options; a wrong size counts as 1."""
    sizes = (options.get(name) for name in SIZES)
    width, stages = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    return width * stages, stages
