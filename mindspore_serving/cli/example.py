"""Example instance for a method, as JSON or, if it is long, as a program that prints the JSON.

It knows no addresses; `specs` are those of `core.signature.describe_inputs`.
"""

import json
import math
import shlex
from collections.abc import Iterable
from typing import Any

_MAX_SHOWN = 32  # numbers in a line; more are printed by a program


def body(specs: Iterable[dict[str, Any]], form: str) -> tuple[str, str]:
    """Return a command that prints the body ("" if none is needed), and the body ("-": printed).

    `form` is the body with {} in place of the instance.
    """
    needed = {spec["name"]: spec["example"] for spec in specs if not spec.get("optional")}
    if all(math.prod(example["shape"]) <= _MAX_SHOWN for example in needed.values()):
        instance = ", ".join(f"{json.dumps(name)}: {_short(needed[name])}" for name in needed)
        return "", form.replace("{}", f"{{{instance}}}")
    instance = ", ".join(f"{name!r}: {_long(needed[name])}" for name in needed)
    program = f"import json; print(json.dumps({form.replace('{}', f'{{{instance}}}')}))"
    return f"python3 -c {shlex.quote(program)}", "-"


def of_file(specs: Iterable[dict[str, Any]], form: str) -> str:
    """Return a command that prints the body with FILE as the input of bytes, "" without such one.

    `printf` is a built-in of shells, so the file can be longer than an argument may be.
    """
    needed = [spec for spec in specs if not spec.get("optional")]
    if len(needed) != 1 or needed[0]["example"]["shape"]:
        return ""
    (spec,) = needed
    if not isinstance(spec["example"]["value"], dict):
        return ""
    name = json.dumps(spec["name"]).replace("%", "%%")
    body = form.replace("{}", f'{{{name}: {{"b64": "%s"}}}}')
    return f"""printf {shlex.quote(body)} "$(base64 < FILE | tr -d '\\n')\""""


def _short(example: dict[str, Any]) -> str:
    value = example["value"]
    for size in reversed(example["shape"]):
        value = [value] * size
    return json.dumps(value)


def _long(example: dict[str, Any]) -> str:
    """Return a Python expression."""
    text = repr(example["value"])
    for size in reversed(example["shape"]):
        text = f"[{text}] * {size}"
    return text
