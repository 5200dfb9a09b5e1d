"""Example instance for a method, as JSON or, if it is long, as a program that prints the JSON.

It knows no addresses; `specs` are those of `core.signature.describe`.
"""

import json
import math
import shlex
from collections.abc import Iterable
from typing import Any

_MAX_SHOWN = 32  # numbers in a line; more are printed by a program
_VALUES = {
    "str": "text",
    "bytes": {"b64": ""},
    "bool": True,
    **dict.fromkeys((None, "float16", "float32", "float64"), 1.0),
}  # of other types: 1


def body(specs: Iterable[dict[str, Any]], form: str) -> tuple[str, str]:
    """Return a command that prints the body ("" if none is needed), and the body ("-": printed).

    `form` is the body with {} in place of the instance.
    """
    needed = [spec for spec in specs if not spec.get("optional")]
    if all(math.prod(_sizes(spec)) <= _MAX_SHOWN for spec in needed):
        instance = ", ".join(f"{json.dumps(spec['name'])}: {_short(spec)}" for spec in needed)
        return "", form.replace("{}", f"{{{instance}}}")
    instance = ", ".join(f"{spec['name']!r}: {_long(spec)}" for spec in needed)
    program = f"import json; print(json.dumps({form.replace('{}', f'{{{instance}}}')}))"
    return f"python3 -c {shlex.quote(program)}", "-"


def _sizes(spec: dict[str, Any]) -> list[int]:
    """Return the dimensions, with 1 for a dynamic one."""
    return [1 if size is None else size for size in spec["shape"] or ()]


def _value(spec: dict[str, Any]) -> Any:
    """Return a number or text for an input."""
    if spec["name"] == "prompt" and spec["dtype"] in (None, "str"):
        return "Once upon a time"
    return _VALUES.get(spec["dtype"], 1)


def _short(spec: dict[str, Any]) -> str:
    value = _value(spec)
    for size in reversed(_sizes(spec)):
        value = [value] * size
    return json.dumps(value)


def _long(spec: dict[str, Any]) -> str:
    """Return a Python expression."""
    text = repr(_value(spec))
    for size in reversed(_sizes(spec)):
        text = f"[{text}] * {size}"
    return text
