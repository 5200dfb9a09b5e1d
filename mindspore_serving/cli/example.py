"""An instance that a method takes, as JSON or, if it is long, as the program that prints it.

Knows nothing of addresses; `specs` are those of `core.signature.describe`.
"""

import json
import math
import shlex
from collections.abc import Iterable
from typing import Any

_FEW = 32  # numbers, that a line may show one by one
_VALUES = {
    "str": "text",
    "bytes": {"b64": ""},
    "bool": True,
    **dict.fromkeys((None, "float16", "float32", "float64"), 1.0),
}  # of other types: 1


def body(specs: Iterable[dict[str, Any]], form: str) -> tuple[str, str]:
    """A command that prints the body, "" if that is short, and the body, "-" if it is printed.

    `form` is the body with {} in place of the instance.
    """
    needed = [spec for spec in specs if not spec.get("optional")]
    if all(math.prod(_sizes(spec)) <= _FEW for spec in needed):
        instance = ", ".join(f"{json.dumps(spec['name'])}: {_short(spec)}" for spec in needed)
        return "", form.replace("{}", f"{{{instance}}}")
    instance = ", ".join(f"{spec['name']!r}: {_long(spec)}" for spec in needed)
    program = f"import json; print(json.dumps({form.replace('{}', f'{{{instance}}}')}))"
    return f"python3 -c {shlex.quote(program)}", "-"


def _sizes(spec: dict[str, Any]) -> list[int]:
    """The dimensions; one that is free is 1."""
    return [1 if size is None else size for size in spec["shape"] or ()]


def _value(spec: dict[str, Any]) -> Any:
    """One number or text for an input."""
    if spec["name"] == "prompt" and spec["dtype"] in (None, "str"):
        return "Once upon a time"
    return _VALUES.get(spec["dtype"], 1)


def _short(spec: dict[str, Any]) -> str:
    value = _value(spec)
    for size in reversed(_sizes(spec)):
        value = [value] * size
    return json.dumps(value)


def _long(spec: dict[str, Any]) -> str:
    """A Python expression."""
    text = repr(_value(spec))
    for size in reversed(_sizes(spec)):
        text = f"[{text}] * {size}"
    return text
