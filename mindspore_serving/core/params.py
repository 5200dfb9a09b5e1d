"""Parameters declared once: a dataclass field whose metadata is the parameter's row of a table.

    @dataclass(frozen=True, slots=True)
    class Params:
        top_p: float = param(1.0, "likeliest tokens that hold this share", over=0.0, at_most=1.0)

    ROWS = rows_of(Params)

Checks, the fields of protocols, defaults and documentation are made from the rows.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
class Row:
    """A parameter.

    Values are from `low`, which is excluded if `is_open`, to `high`; of a list that is the number
    of entries.  `kind` is what JSON has in its place: int, float, bool, list[str], list[int] or
    dict[int, float].  `aliases` has its name in each of `PROTOCOLS`, None where it is not offered.
    """

    default: Any
    meaning: str
    low: float
    high: float
    is_open: bool
    aliases: Mapping[str, str | None]
    choices: tuple[Any, ...] = ()
    name: str = ""  # this and what follows is known once the field is in its class
    kind: Any = None
    is_nullable: bool = False

    def name_in(self, place: str) -> str | None:
        """What it is called there; None where it cannot be given."""
        return self.aliases.get(place, self.name)

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
            is_accepted = is_type and isinstance(value, _TYPES[self.kind]) and self._has(value)
        elif self.kind == list[str]:
            is_accepted = not isinstance(value, str)
            is_accepted = is_accepted and all(isinstance(one, str) and one for one in value)
        if not is_accepted:
            raise InvalidField(self.name, f"is {value!r}, expected {self.accepted}")
        if self.kind == list[str] and len(value) > self.high:
            raise InvalidField(self.name, f"has {len(value)} texts, expected at most {self.high}")

    def _has(self, value: Any) -> bool:
        if self.choices or self.kind is str:
            return not self.choices or value in self.choices
        is_over = value > self.low if self.is_open else value >= self.low
        return bool(is_over and value <= self.high and value != _INFINITE)


_TYPES: dict[Any, Any] = {bool: bool, int: int, float: int | float, str: str}
_WORDS = {
    bool: "True or False",
    str: "a text",
    list[str]: "a list of texts that are not empty",
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
    choices: Sequence[Any] = (),
    **aliases: str | None,
) -> T:
    """A dataclass field that is a parameter.

    Args:
        meaning: what it does, in one line.
        at_least, over, at_most: the range; of texts `at_most` is their number.
        aliases: its name in a protocol, if it differs; None if the protocol does not offer it.
    """
    low = over if over is not None else -_INFINITE if at_least is None else at_least
    row = Row(
        default, meaning, low, at_most, over is not None, aliases, choices=tuple(choices)
    )  # fmt: skip
    metadata = {_ROW: row}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)  # type: ignore[return-value]
    found: T = field(default=default, metadata=metadata)
    return found


def rows_of(params: type) -> dict[str, Row]:
    """The rows of a dataclass whose fields are parameters, by name, in their order."""
    hints = get_type_hints(params)
    found = {}
    for name, row in ((one.name, one.metadata[_ROW]) for one in fields(params)):
        kind, is_nullable = _json_kind(hints[name])
        aliases = {**dict.fromkeys(PROTOCOLS, name), **row.aliases}
        found[name] = replace(row, aliases=aliases, name=name, kind=kind, is_nullable=is_nullable)
    return found


def _json_kind(hint: Any) -> tuple[Any, bool]:
    """The type that JSON has in place of `hint`, and whether null is one of its values."""
    is_nullable = types.NoneType in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):  # of several types the last is most general
        hint = [one for one in get_args(hint) if one is not types.NoneType][-1]
    containers: dict[Any, Any] = {Sequence: list, Mapping: dict}
    container = containers.get(get_origin(hint))
    return (container[get_args(hint)] if container else hint), is_nullable
