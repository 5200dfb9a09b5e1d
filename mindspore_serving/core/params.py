"""Parameters and options declared once, as fields of a dataclass.

    @dataclass(frozen=True, slots=True)
    class Params:
        top_p: float = param(1.0, "likeliest tokens that hold this share", over=0.0, at_most=1.0)

    ROWS = rows_of(Params)

A field's metadata is its row of a table.  Checks, fields of protocols, defaults, `--help`, schemas
and the tables of docs/ are made from the rows.  It knows no parameter itself.
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
    "gemini": "Gemini",
    "ollama": "Ollama",
    "llamacpp": "llama.cpp",
    "tgi": "TGI",
    "llm_serving": "llm-serving",
    "v2": "v2",
}
_ROW = "row"
_INFINITE = float("inf")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OptionRow:
    """Parameter of a request, or option of the operator.

    Values are from `low`, which is excluded if `is_open`, to `high`; for a list these bound the
    number of entries.  `kind` is the type of its values in JSON: int, float, bool, str, list[str]
    or dict[int, float] for example.  `aliases` has its name in each of `PROTOCOLS` and in other
    interfaces, None where it is not offered.

    `meaning` is one short line without unit and default; `details` are further sentences.
    `default_text` describes a default that is computed (None) or has a meaning of its own (0).
    Options are shown in `group`s, with `metavar` for a value; the common ones by `--help`, all by
    `--help-all`.  `page` is the page of docs/ about it.  `parse` converts the text of the command
    line, if the kind is not enough.  A path in a file is relative to that file.
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
    details: str = ""
    default_text: str = ""
    page: str = ""
    is_common: bool = False
    name: str = ""  # this and the fields below are known once the field is in its class
    kind: Any = None
    is_nullable: bool = False

    def name_in(self, interface: str) -> str | None:
        """Return the name of the parameter in an interface; None where it is not offered."""
        return self.aliases.get(interface, self.name)

    @property
    def full_meaning(self) -> str:
        """Text of the meaning, with the details as further sentences."""
        return f"{self.meaning}. {self.details}" if self.details else self.meaning

    @property
    def shown_default(self) -> str:
        """Default for users, with its unit; "" if there is none worth showing."""
        if self.default_text or self.default in (None, False, (), {}, ""):
            return self.default_text
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        if self.default is True:
            return "true"
        number = self.default
        if self.unit == "bytes" and number >= 1 << 30 and number % (1 << 30) == 0:
            return f"{number / (1 << 30):g} GiB"
        shown = f"{number:g}" if isinstance(number, float) else str(number)
        return f"{shown} {self.unit}".rstrip()

    @property
    def unit_and_default(self) -> str:
        """Text in parentheses with the unit and `default_text`; "" if there is neither."""
        parts = (
            self.unit and f"in {self.unit}",
            self.default_text and f"default: {self.default_text}",
        )
        return f" ({'; '.join(filter(None, parts))})" if any(parts) else ""

    @property
    def json_type(self) -> str:
        """JSON type of its values in a file."""
        if self.metavar.startswith("NAME="):  # texts on the command line, a mapping in a file
            return "object"
        return _JSON_TYPES.get(get_origin(self.kind) or self.kind, "string")

    @property
    def item_type(self) -> str:
        """JSON type of the entries of an array or the values of an object; else ""."""
        if self.metavar.startswith("NAME=") or get_args(self.kind)[-1:] == (Any,):
            return "scalar"
        return _JSON_TYPES.get(get_args(self.kind)[-1], "string") if get_args(self.kind) else ""

    @property
    def accepted(self) -> str:
        """Accepted values in words."""
        low, high = self.low, self.high
        if self.choices:
            return " or ".join(map(str, self.choices))
        if self.kind in (int, float) and (low, high) == (-_INFINITE, _INFINITE):
            return "an int" if self.kind is int else "a number"
        if self.kind is int:
            return f"an int >= {low}" if high == _INFINITE else f"an int of {low} to {high}"
        if self.kind is float and high == _INFINITE:
            return f"a number {'over' if self.is_open else '>='} {low:g}"
        if self.kind is float:
            return f"a number from {'over ' if self.is_open else ''}{low:g} to {high:g}"
        return _WORDS[self.kind]

    def to_schema(self) -> dict[str, Any]:
        """Return the keywords of a JSON schema for its values, except their type."""
        schema: dict[str, Any] = {"description": self.full_meaning + self.unit_and_default}
        if self.choices:
            schema["enum"] = list(self.choices)
        is_number = self.kind in (int, float)
        if is_number and self.low != -_INFINITE:
            schema["exclusiveMinimum" if self.is_open else "minimum"] = self.low
        if self.high != _INFINITE:
            schema["maximum" if is_number else "maxItems"] = self.high
        return schema if self.default in ((), {}) else {**schema, "default": self.default}

    def check(self, value: Any) -> None:
        """Raise InvalidField for a value of another type or out of range.

        Token ids are not checked here: that takes a vocabulary.
        """
        if value is None and self.is_nullable:
            return
        is_accepted = True
        if self.kind in _TYPES:  # to Python a bool is an int, too
            is_type = isinstance(value, bool) == (self.kind is bool)
            is_accepted = is_type and isinstance(value, _TYPES[self.kind]) and self.has(value)
        elif self.kind == list[str]:
            is_accepted = not isinstance(value, str)
            is_accepted = is_accepted and all(isinstance(text, str) and text for text in value)
        if not is_accepted:
            raise InvalidField(self.name, f"is {value!r}, expected {self.accepted}")
        if self.kind == list[str] and len(value) > self.high:
            raise InvalidField(self.name, f"has {len(value)} texts, expected at most {self.high}")

    def has(self, value: Any) -> bool:
        """Return whether a value is one of the choices, or a number in the range."""
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
    dict[str, float]: "a number for each of some texts",
    dict[str, int]: "an int for each of some names",
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
    details: str = "",
    default_text: str = "",
    page: str = "",
    is_common: bool = False,
    **aliases: str | None,
) -> T:
    """Make a dataclass field that is a parameter or an option, see `OptionRow`.

    `at_least`, `over` and `at_most` are the range of a number, of which `over` is exclusive;
    `at_most` also bounds the number of texts. A field that `is_secret` is left out of the
    dataclass's repr. `aliases` are its names in interfaces where they differ; None if it is not
    offered there.
    """
    low = over if over is not None else -_INFINITE if at_least is None else at_least
    row = OptionRow(
        default, meaning, low, at_most, over is not None, aliases,
        unit=unit, group=group, choices=tuple(choices), metavar=metavar, parse=parse,
        is_path=is_path, details=details, default_text=default_text, page=page,
        is_common=is_common,
    )  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={_ROW: row})  # type: ignore[return-value]
    option: T = field(default=default, repr=not is_secret, metadata={_ROW: row})
    return option


def documented(rows: Mapping[str, OptionRow]) -> Callable[[T], T]:
    """Replace {} in the docstring of a function or class by the meanings of its arguments."""

    def document(documented_object: T) -> T:
        names = inspect.signature(documented_object).parameters  # type: ignore[arg-type]
        texts = (_argument(name, rows[name]) for name in names if name in rows)
        lines = (
            fill(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 12) for text in texts
        )
        if documented_object.__doc__:  # None with python -OO
            text = documented_object.__doc__.replace("        {}", "\n".join(lines))
            documented_object.__doc__ = text
        return documented_object

    return document


def _argument(name: str, row: OptionRow) -> str:
    return f"{name}: {row.meaning}{row.unit_and_default}.{row.details and f' {row.details}.'}"


def rows_of(params: type) -> dict[str, OptionRow]:
    """Return the rows of a dataclass's fields made by `param`, by name and in order."""
    hints = get_type_hints(params)
    table = {}
    rows = ((each.name, each.metadata[_ROW]) for each in fields(params) if _ROW in each.metadata)
    for name, row in rows:
        kind, is_nullable = _json_kind(hints[name])
        aliases = {**dict.fromkeys(PROTOCOLS, name), **row.aliases}
        table[name] = replace(row, aliases=aliases, name=name, kind=kind, is_nullable=is_nullable)
    return table


def _json_kind(hint: Any) -> tuple[Any, bool]:
    """Return the JSON type for a type hint, and whether null is one of its values."""
    is_nullable = types.NoneType in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):  # of several types the last is most general
        hint = [arg for arg in get_args(hint) if arg is not types.NoneType][-1]
    if get_origin(hint) is tuple:
        return types.GenericAlias(list, get_args(hint)[:1]), is_nullable
    containers: dict[Any, Any] = {Sequence: list, Mapping: dict}
    container = containers.get(get_origin(hint))
    return (container[get_args(hint)] if container else hint), is_nullable
