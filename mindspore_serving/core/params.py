"""Parameters declared once: a dataclass field whose metadata is the parameter's row of a table.

    @dataclass(frozen=True, slots=True)
    class Params:
        top_p: float = param(1.0, "likeliest tokens that hold this share", over=0.0, at_most=1.0)

    ROWS = rows_of(Params)

Checks, the fields of protocols, defaults and documentation are made from the rows.
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from textwrap import fill
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mindspore_serving.errors import InvalidField

PROTOCOLS = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    "tgi": "TGI",
    "llm_serving": "llm-serving",
    "v2": "v2",
}
_ROW = "row"
_INFINITE = float("inf")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OptionRow:
    """A parameter of a request, or an option of the operator.

    Values are from `low`, which is excluded if `is_open`, to `high`; of a list that is the number
    of entries.  `kind` is what JSON has in its place: int, float, bool, str, list[str] or
    dict[int, float] for example.  `aliases` has its name in each of `PROTOCOLS`, or other places
    where it may be given, and None where it is not offered.  Options are shown in `group`s, with
    `metavar` for a value, and are read from words by `parse` if their kind does not say how.  A
    path in a file is relative to that.
    """

    default: Any
    meaning: str
    low: float
    high: float
    is_open: bool
    aliases: Mapping[str, str | None]
    unit: str = ""
    group: str = ""
    choices: tuple[Any, ...] = ()
    metavar: str = ""
    parse: Callable[[str], Any] | None = None
    is_path: bool = False
    name: str = ""  # this and what follows is known once the field is in its class
    kind: Any = None
    is_nullable: bool = False

    def name_in(self, place: str) -> str | None:
        """What it is called there; None where it cannot be given."""
        return self.aliases.get(place, self.name)

    @property
    def json_type(self) -> str:
        """The type of JSON that its values have in a file."""
        if self.metavar.startswith("NAME="):  # texts of the command line, but names with values
            return "object"
        return _JSON_TYPES.get(get_origin(self.kind) or self.kind, "string")

    @property
    def item_type(self) -> str:
        """The type of the entries of an array or the values of an object; "" of other kinds."""
        if self.metavar.startswith("NAME="):
            return "scalar"
        return _JSON_TYPES.get(get_args(self.kind)[-1], "string") if get_args(self.kind) else ""

    @property
    def accepted(self) -> str:
        """The values that are accepted, in words."""
        low, high = self.low, self.high
        if self.choices:
            return " or ".join(map(str, self.choices))
        if self.kind is int:
            return f"an int >= {low}" if high == _INFINITE else f"an int of {low} to {high}"
        if self.kind is float and high == _INFINITE:
            return f"a number {'over' if self.is_open else '>='} {low:g}"
        if self.kind is float:
            return f"a number from {'over ' if self.is_open else ''}{low:g} to {high:g}"
        return _WORDS[self.kind]

    def to_schema(self) -> dict[str, Any]:
        """What a JSON schema says of its values besides their type."""
        found: dict[str, Any] = {"description": self.meaning}
        if self.choices:
            found["enum"] = list(self.choices)
        is_number = self.kind in (int, float)
        if is_number and self.low != -_INFINITE:
            found["exclusiveMinimum" if self.is_open else "minimum"] = self.low
        if self.high != _INFINITE:
            found["maximum" if is_number else "maxItems"] = self.high
        return found if self.default in ((), {}) else {**found, "default": self.default}

    def check(self, value: Any) -> None:
        """Raises InvalidField.  Token ids are not looked at: that takes a vocabulary."""
        if value is None and self.is_nullable:
            return
        is_accepted = True
        if self.kind in _TYPES:  # to Python a bool is an int, too
            is_type = isinstance(value, bool) == (self.kind is bool)
            is_accepted = is_type and isinstance(value, _TYPES[self.kind]) and self.has(value)
        elif self.kind == list[str]:
            is_accepted = not isinstance(value, str)
            is_accepted = is_accepted and all(isinstance(one, str) and one for one in value)
        if not is_accepted:
            raise InvalidField(self.name, f"is {value!r}, expected {self.accepted}")
        if self.kind == list[str] and len(value) > self.high:
            raise InvalidField(self.name, f"has {len(value)} texts, expected at most {self.high}")

    def has(self, value: Any) -> bool:
        """Whether it is one of the choices, or a number in the range."""
        if self.choices or self.kind is str:
            return not self.choices or value in self.choices
        is_over = value > self.low if self.is_open else value >= self.low
        return bool(is_over and value <= self.high and value != _INFINITE)


_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_TYPES: dict[Any, Any] = {bool: bool, int: int, float: int | float, str: str}
_WORDS = {
    bool: "True or False",
    str: "a text",
    list[str]: "a list of non-empty strings",
    list[int]: "a list of token ids",
    dict[int, float]: "a number for each of some token ids",
}


def param(
    default: T,
    meaning: str,
    *,
    at_least: float | None = None,
    over: float | None = None,
    at_most: float = _INFINITE,
    unit: str = "",
    group: str = "",
    choices: Sequence[Any] = (),
    metavar: str = "",
    parse: Callable[[str], Any] | None = None,
    is_path: bool = False,
    is_secret: bool = False,
    **aliases: str | None,
) -> T:
    """A dataclass field that is a parameter or an option: see `OptionRow`.

    Args:
        meaning: what it does, in one line.
        at_least, over, at_most: the range; of texts `at_most` is their number.
        is_secret: it is not shown.
        aliases: its name in a place, if it differs; None if it cannot be given there.
    """
    low = over if over is not None else -_INFINITE if at_least is None else at_least
    row = OptionRow(
        default, meaning, low, at_most, over is not None, aliases,
        unit=unit, group=group, choices=tuple(choices), metavar=metavar, parse=parse,
        is_path=is_path,
    )  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={_ROW: row})  # type: ignore[return-value]
    found: T = field(default=default, repr=not is_secret, metadata={_ROW: row})
    return found


def documented(rows: Mapping[str, OptionRow]) -> Callable[[T], T]:
    """Put the meanings of arguments that have `rows` in place of {} in the text of a function or
    class.
    """

    def document(made: T) -> T:
        names = inspect.signature(made).parameters  # type: ignore[arg-type]
        meanings = {name: rows[name].meaning for name in names if name in rows}
        texts = (f"{name}: {text.removesuffix('; repeatable')}." for name, text in meanings.items())
        lines = (
            fill(one, 100, initial_indent=" " * 8, subsequent_indent=" " * 12) for one in texts
        )
        if made.__doc__:  # there is none with python -OO
            made.__doc__ = made.__doc__.replace("        {}", "\n".join(lines))
        return made

    return document


def rows_of(params: type) -> dict[str, OptionRow]:
    """The rows of the fields of a dataclass that are parameters, by name, in their order."""
    hints = get_type_hints(params)
    found = {}
    rows = ((one.name, one.metadata[_ROW]) for one in fields(params) if _ROW in one.metadata)
    for name, row in rows:
        kind, is_nullable = _json_kind(hints[name])
        aliases = {**dict.fromkeys(PROTOCOLS, name), **row.aliases}
        found[name] = replace(row, aliases=aliases, name=name, kind=kind, is_nullable=is_nullable)
    return found


def _json_kind(hint: Any) -> tuple[Any, bool]:
    """The type that JSON has in place of `hint`, and whether null is one of its values."""
    is_nullable = types.NoneType in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):  # of several types the last is most general
        hint = [one for one in get_args(hint) if one is not types.NoneType][-1]
    if get_origin(hint) is tuple:
        return types.GenericAlias(list, get_args(hint)[:1]), is_nullable
    containers: dict[Any, Any] = {Sequence: list, Mapping: dict}
    container = containers.get(get_origin(hint))
    return (container[get_args(hint)] if container else hint), is_nullable
