"""Definitions of functions, as `ast` parses their files; knows no types."""

import ast
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    with open(path, encoding="utf-8") as file:
        nodes = list(ast.walk(ast.parse(file.read())))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    # As in code objects, the first line of a definition is that of its first decorator.
    return {
        (node.name, node.decorator_list[0].lineno if node.decorator_list else node.lineno): node
        for node in functions
    }


def definition(function: Callable[..., Any]) -> ast.FunctionDef:
    """Return the definition of a function of a file."""
    code = function.__code__
    return _definitions(code.co_filename)[function.__name__, code.co_firstlineno]


@cache
def has_result(function: Callable[..., Any]) -> bool:
    """Return whether a function returns values."""
    nodes = ast.walk(definition(function))
    return any(isinstance(node, ast.Return) and node.value is not None for node in nodes)


@cache
def assigned(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names that a function assigns."""
    names = (node for node in ast.walk(definition(function)) if isinstance(node, ast.Name))
    return frozenset(node.id for node in names if isinstance(node.ctx, ast.Store))
