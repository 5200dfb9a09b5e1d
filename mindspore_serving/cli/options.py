"""Options of a subcommand, made of the fields of frozen settings: each is written once, as a field.

Knows no values beyond their types.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from functools import partial
from typing import Any, TypeVar

from mindspore_serving.errors import InvalidInputs

_Settings = TypeVar("_Settings")
_Number = TypeVar("_Number", int, float)
_Kind = type[Any]
_HIDDEN = "hidden"
_MARKS = ("per_servable", "is_path")  # of `own` and `path`


def option(default: Any, text: str, **arguments: Any) -> Any:
    """A field that is `--name`; `arguments` go to argparse."""
    return field(default=default, metadata={"help": text, **arguments})


own = partial(option, per_servable=True)  # a configuration file may have it for each servable
path = partial(option, is_path=True)  # in a configuration file it is relative to that
own_path = partial(option, per_servable=True, is_path=True)


def hidden(default: Any) -> Any:
    """A field that is no option."""
    return field(default=default, metadata={_HIDDEN: True})


def positional(text: str, **arguments: Any) -> Any:
    return field(metadata={"help": text, **arguments})


def numbers(kind: type[_Number], example: str) -> Callable[[str], tuple[_Number, ...]]:
    """Reads numbers with commas between them."""

    def read(text: str) -> tuple[_Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as {example}") from None

    return read


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Reads NAME=VALUE with commas between them."""
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not name or not value:
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,NAME=VALUE")
        if name in dict(found):
            raise argparse.ArgumentTypeError(f"{text!r} has {name} twice")
        found.append((name, value))
    return tuple(found)


ids = numbers(int, "0,1,2")


class _Once(argparse.Action):
    """An option with one value, which is refused where it is given again."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if hasattr(namespace, self.dest):  # it has no default
            raise argparse.ArgumentError(self, "given twice, but it can have one value only")
        self.put(namespace, values, option_string or "")

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, values)


class _Flag(_Once):
    """--name, which has no value."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(nargs=0, **arguments)

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, True)


class _Switch(_Once, argparse.BooleanOptionalAction):
    """--name and --no-name."""

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, not option_string.startswith("--no-"))


def add_options(parser: argparse.ArgumentParser, kind: _Kind) -> None:
    """One argument of `parser` for each field of `kind`, which is parsed only where it is given."""
    for one in sorted(fields(kind), key=lambda one: one.kw_only is True):  # `Access` is last
        if _HIDDEN in one.metadata:
            continue
        arguments = {name: value for name, value in one.metadata.items() if name not in _MARKS}
        if one.default is MISSING:
            parser.add_argument(one.name, **arguments)
            continue
        arguments["help"] = _with_default(arguments["help"], one.default)
        arguments |= _parsing(one.default)
        if "action" not in arguments and "choices" not in arguments:
            arguments.setdefault("metavar", _metavar(one.name, one.default))
        arguments.setdefault("action", _Once)
        flag = _flag(one.name)
        parser.add_argument(flag, dest=one.name, default=argparse.SUPPRESS, **arguments)


def _with_default(text: str, default: Any) -> str:
    """The help of an option, which says its default unless that is to have none."""
    if default in (None, False, (), "") or "(default:" in text:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})"


def _parsing(default: Any) -> dict[str, Any]:
    """How an option with this default is parsed, where that follows from it."""
    if isinstance(default, bool):
        return {"action": _Switch if default else _Flag}
    return {"type": type(default)} if isinstance(default, int | float) else {}


def to_settings(kind: type[_Settings], arguments: argparse.Namespace) -> _Settings:
    return kind(**given(kind, arguments))


def given(kind: _Kind, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `kind` that `arguments` give."""
    names = {one.name for one in fields(kind)}
    found = {name: value for name, value in vars(arguments).items() if name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}


def to_values(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """The values of a repeatable `option` with texts NAME=VALUE.  Raises InvalidInputs for one
    without a value, and for a name that is there twice."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInputs(f"{option} is {text!r}, expected NAME=VALUE")
        name = name.replace("-", "_")
        if name in found:
            raise InvalidInputs(f"{option} has {name} twice, but it can have one value only")
        found[name] = _value(value)
    return found


def flags(kind: _Kind) -> list[str]:
    """The options that `kind` has, as "--http-port"."""
    return [_flag(one.name) for one in fields(kind) if one.default is not MISSING]


def _value(text: str) -> Any:
    """A number, true, false or a JSON object where `text` is one; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(name: str, default: object) -> str:
    if name.endswith("port"):
        return "PORT"
    if name == "host":
        return "HOST"
    return {int: "N", float: "SECONDS"}.get(type(default), "FILE")
