"""Options of subcommands, made from the fields of frozen settings, each written once.

It knows the types of values, not what they mean.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from mindspore_serving.cli.parser import CommandParser, HelpAll, help_text
from mindspore_serving.core.params import OptionRow, param, rows_of
from mindspore_serving.errors import InvalidInputs

SERVE = "serve"  # the interface in which options have the names of `--help`
GROUPS = (
    *(
        "",
        "models",
        "ports",
        "workers",
        "batching",
        "limits",
        "security",
        "observing",
        "machines",
    ),
    *("language models", "access to the server"),
)

_Settings = TypeVar("_Settings")
_Number = TypeVar("_Number", int, float)
_Kind = type[Any]

option = param


def positional(text: str, **arguments: Any) -> Any:
    """Make a field that is a positional argument; `arguments` go to argparse."""
    return field(metadata={"help": text, **arguments})


def numbers(kind: type[_Number], example: str) -> Callable[[str], tuple[_Number, ...]]:
    """Return a parser of numbers that are separated by commas."""

    def read(text: str) -> tuple[_Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers as {example}") from None

    return read


def pairs(text: str) -> dict[str, str]:
    """Parse NAME=VALUE pairs that are separated by commas."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not name or not value:
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE,NAME=VALUE")
        if name in values:
            raise argparse.ArgumentTypeError(f"{text!r} has {name} twice")
        values[name] = value
    return values


def axes(text: str) -> dict[str, int]:
    """Parse NAME=NUMBER pairs that are separated by commas."""
    try:
        return {name: int(value) for name, value in pairs(text).items()}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=NUMBER,NAME=NUMBER") from None


ids = numbers(int, "0,1,2")
METAVARS = {int: "N", float: "SECONDS"}  # of other kinds FILE, if a row has none of its own
_PARSERS: dict[Any, Any] = {list[int]: ids, dict[str, str]: pairs, dict[str, int]: axes}


class _Once(argparse.Action):
    """Option with one value, which is refused if it is given twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if hasattr(namespace, self.dest):  # it has no default
            raise argparse.ArgumentError(self, "given twice, but it takes one value")
        self.put(namespace, values, option_string or "")

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, values)


class _Flag(_Once):
    """Option --name without a value."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(nargs=0, **arguments)

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, True)


class _Switch(_Once, argparse.BooleanOptionalAction):
    """Options --name and --no-name."""

    def put(self, namespace: argparse.Namespace, values: Any, option_string: str) -> None:
        setattr(namespace, self.dest, not option_string.startswith("--no-"))


def add_options(parser: CommandParser, kind: _Kind) -> None:
    """Add an argument for each field of the settings `kind`, by groups; none has a default."""
    for argument in fields(kind):
        if "help" in argument.metadata:
            parser.add_argument(argument.name, **argument.metadata)
    rows = [row for row in rows_of(kind).values() if row.name_in(SERVE)]
    parser.describe(rows)
    if any(row.is_common for row in rows):
        text = "show all options with details and exit"
        parser.add_argument("--help-all", action=HelpAll, help=text)
    for group in sorted({row.group for row in rows}, key=GROUPS.index):
        target = parser.add_argument_group(group) if group else parser
        for row in rows:
            if row.group == group:
                target.add_argument(
                    flag(row),
                    dest=row.name,
                    default=argparse.SUPPRESS,
                    help=help_text(row),
                    **_parsing(row),
                )


def _parsing(row: OptionRow) -> dict[str, Any]:
    """Return the arguments of `add_argument` that say how an option is parsed."""
    if row.kind is bool:
        return {"action": _Flag if row.default is False else _Switch}
    metavar = row.metavar or METAVARS.get(row.kind, "FILE")
    if row.kind == list[str] and not row.parse:
        return {"action": "append", "metavar": metavar}
    shown: dict[str, Any] = {"choices": row.choices} if row.choices else {}
    if row.metavar or not row.choices:
        shown["metavar"] = metavar
    if row.kind in (int, float) and not row.parse:
        return {"action": _Once, "type": _number(row), **shown}
    parse = _checked(row.parse) if row.parse else _PARSERS.get(row.kind)
    return {"action": _Once, "type": parse, **shown}


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `parse` with its errors as those of an argument, which argparse shows."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except InvalidInputs as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _number(row: OptionRow) -> Callable[[str], Any]:
    """Return a parser of the numbers of `row`; their range is checked later."""

    def read(text: str) -> Any:
        try:
            return row.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {row.accepted}") from None

    return read


def to_settings(kind: type[_Settings], values: dict[str, Any]) -> _Settings:
    """Create settings of `values`.  Raises InvalidInputs for a number that is out of range."""
    settings = kind(**values)
    for name, row in rows_of(kind).items():
        value = getattr(settings, name)
        if row.kind in (int, float) and value is not None and not row.has(value):
            raise InvalidInputs(f"{flag(row)} is {value}, expected {row.accepted}")
    return settings


def parsed_values(kind: _Kind, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the settings `kind` that are on the command line."""
    names = {each.name for each in fields(kind)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def to_words(kind: _Kind, settings: object) -> list[str]:
    """Return the options of the settings `kind` that differ from their defaults, as words."""
    words: list[str] = []
    for name, row in rows_of(kind).items():
        value = getattr(settings, name)
        if not row.name_in(SERVE) or value == row.default:
            continue
        words += _words(row, value)
    return words


def _words(row: OptionRow, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(row) if value else f"--no-{flag(row)[2:]}"]
    if row.kind == list[str] and not row.parse:
        return [word for text in value for word in (flag(row), text)]
    if isinstance(value, dict):
        value = ",".join(
            f"{name}={item if isinstance(item, str) else json.dumps(item)}"
            for name, item in value.items()
        )
    elif isinstance(value, tuple):
        value = ",".join(map(str, value))
    return [flag(row), str(value)]


def to_values(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of a repeatable `option` by name; `texts` are NAME=VALUE.

    Raises InvalidInputs for a name without a value, and for a name that is given twice.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInputs(f"{option} is {text!r}, expected NAME=VALUE")
        name = name.replace("-", "_")
        if name in values:
            raise InvalidInputs(f"{option} has {name} twice, but it takes one value")
        values[name] = _value(value)
    return values


def flags(kind: _Kind) -> list[str]:
    """Return the options of the settings `kind`, as "--http-port"."""
    return [flag(row) for row in rows_of(kind).values() if row.name_in(SERVE)]


def _value(text: str) -> Any:
    """Parse a number, true, false or a JSON object; any other text is returned as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flag(row: OptionRow) -> str:
    """Return the option of the command line, as "--http-port"."""
    return "--" + (row.name_in(SERVE) or "").replace("_", "-")
