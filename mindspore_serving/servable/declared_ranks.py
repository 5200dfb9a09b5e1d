"""Over how many processes a servable_config.py has its language model cut, by its source.

The master does not run that file, and has to know before a worker does.
"""

import ast
from math import prod

from mindspore_serving.servable.literals import names_of, value_of

OPTIONS = ("tensor_parallel", "pipeline_parallel")


def declared_ranks(path: str) -> int:
    """The ranks of `declare_llm` in the file at `path`, as its literals and those of its names say;
    the most if it is called more than once.  1 for what they do not say, and what a worker
    refuses.
    """
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return 1  # the worker says what is wrong
    names = names_of(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return max((_ranks(one, names) for one in calls if _is_declaration(one)), default=1)


def _is_declaration(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "declare_llm"


def _ranks(call: ast.Call, names: dict[str, object]) -> int:
    given: dict[str, object] = {}
    for one in call.keywords:
        try:
            found = value_of(one.value, names)
        except (ValueError, KeyError, IndexError, TypeError):
            continue  # computed
        given |= {one.arg: found} if one.arg else found if isinstance(found, dict) else {}
    sizes = (given.get(option) for option in OPTIONS)
    return prod(size for size in sizes if isinstance(size, int) and size > 0)
