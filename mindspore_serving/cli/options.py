"""Options of a subcommand, made of the rows of frozen settings: each is written once, as a field.

Knows no values beyond their types.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from mindspore_serving.core.params import OptionRow, param, rows_of
from mindspore_serving.errors import InvalidInputs

SERVE = "serve"  # the place where options are given by their names in `--help`
GROUPS = (
    *("", "models", "ports", "workers", "batching", "limits", "security", "observing", "machines"),
    *("language models", "access to the server"),
)

_Settings = TypeVar("_Settings")
_Number = TypeVar("_Number", int, float)
_Kind = type[Any]

option = param


def positional(text: str, **arguments: Any) -> Any:
    """A field that is an argument without a name; `arguments` go to argparse."""
    return field(metadata={"help": text, **arguments})


def numbers(kind: type[_Number], example: str) -> Callable[[str], tuple[_Number, ...]]:
    """Reads numbers with commas between them."""

    def read(text: str) -> tuple[_Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as {example}") from None

    return read


def pairs(text: str) -> dict[str, str]:
    """Reads NAME=VALUE with commas between them."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not name or not value:
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,NAME=VALUE")
        if name in found:
            raise argparse.ArgumentTypeError(f"{text!r} has {name} twice")
        found[name] = value
    return found


ids = numbers(int, "0,1,2")
_PARSERS: dict[Any, Any] = {int: int, float: float, list[int]: ids, dict[str, str]: pairs}


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
    """Add an argument for each field of `kind`, by groups; it has no default."""
    for one in fields(kind):
        if "help" in one.metadata:
            parser.add_argument(one.name, **one.metadata)
    rows = [row for row in rows_of(kind).values() if row.name_in(SERVE)]
    for group in sorted({row.group for row in rows}, key=GROUPS.index):
        target = parser.add_argument_group(group) if group else parser
        for row in rows:
            if row.group == group:
                target.add_argument(
                    flag(row),
                    dest=row.name,
                    default=argparse.SUPPRESS,
                    help=_with_default(row.meaning, row.default),
                    **_parsing(row),
                )


def _with_default(text: str, default: Any) -> str:
    """The help of an option, which says its default unless that is to have none."""
    if default in (None, False, (), {}, "") or "(default" in text:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})"


def _parsing(row: OptionRow) -> dict[str, Any]:
    """How argparse reads an option."""
    if row.kind is bool:
        return {"action": _Switch if row.default else _Flag}
    metavar = row.metavar or {int: "N", float: "SECONDS"}.get(row.kind, "FILE")
    if row.kind == list[str] and not row.parse:
        return {"action": "append", "metavar": metavar}
    shown: dict[str, Any] = {"choices": row.choices} if row.choices else {"metavar": metavar}
    return {"action": _Once, "type": row.parse or _PARSERS.get(row.kind), **shown}


def to_settings(kind: type[_Settings], values: dict[str, Any]) -> _Settings:
    """Make settings of `values`.  Raises InvalidInputs for a number that is out of its range."""
    settings = kind(**values)
    for name, row in rows_of(kind).items():
        value = getattr(settings, name)
        if row.kind in (int, float) and value is not None and not row.has(value):
            raise InvalidInputs(f"{flag(row)} is {value}, expected {row.accepted}")
    return settings


def given(kind: _Kind, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `kind` that `arguments` give."""
    names = {one.name for one in fields(kind)}
    found = {name: value for name, value in vars(arguments).items() if name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}


def to_values(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """The values of a repeatable `option` with texts NAME=VALUE.  Raises InvalidInputs for one
    without a value, and for a name that is there twice.
    """
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
    return [flag(row) for row in rows_of(kind).values() if row.name_in(SERVE)]


def _value(text: str) -> Any:
    """A number, true, false or a JSON object where `text` is one; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flag(row: OptionRow) -> str:
    return "--" + (row.name_in(SERVE) or "").replace("_", "-")
