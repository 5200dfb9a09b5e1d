"""What a protocol does with the fields of its requests, as tables: which it takes for sampling
parameters, translates, refuses and ignores.

The structs that bodies are decoded to, refusals, translations and documentation are made from
them.  Knows no protocol.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from mindspore_serving.core.llm_messages import Started
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_TYPES: dict[Any, Any] = {int: Int, list[int]: list[Int], dict[int, float]: dict[Int, float]}
CAPPED = "x-capped-fields"  # a header: which field asked for more than the context has room for
_MOST_SHOWN = 80  # characters of a wrong value
_NOTHING: list[Any] = [None, False, 0, "", [], {}]  # what says no more than to leave a field out

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FieldRefusal:
    """`field` is refused for `problem`, where "{}" is its value, if `is_wrong` of that."""

    field: str
    problem: str
    is_wrong: Callable[[Any], bool] = bool


Make = Callable[[Any, ModelCard], Any]


@dataclass(frozen=True, slots=True)
class Translation:
    """Field `to` of SamplingParams, or of what else is made of a body, is made of `fields`.

    `make` gets the body and the model's card; None leaves it out, and InvalidField is an error.
    `meaning` is for people.
    """

    fields: tuple[str, ...]
    to: str
    meaning: str
    make: Make


def translation(*fields: str, to: str = "") -> Callable[[Make], Translation]:
    """Turns a function into a Translation, with its docstring as the meaning; of several fields
    the one that is given is named in errors.  `to` is by default the first of them.
    """
    return lambda make: Translation(fields, to or fields[0], make.__doc__ or "", make)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a protocol: a name in `core.params.PROTOCOLS`, and the tables.

    Sampling parameters that are not translated have their names in the protocol, and null is as
    good as nothing.  `ignored` are those that clients may send and that mean nothing; so does any
    other that is not known.
    """

    protocol: str
    refused: tuple[FieldRefusal, ...] = ()
    translated: tuple[Translation, ...] = ()
    ignored: tuple[str, ...] = ()
    _plain: Mapping[str, str] = field(init=False)  # parameter -> field

    def __post_init__(self) -> None:
        aliases = {name: row.aliases[self.protocol] for name, row in SAMPLING.items()}
        others = {one.to for one in self.translated}
        plain = {name: alias for name, alias in aliases.items() if alias and name not in others}
        object.__setattr__(self, "_plain", plain)

    def extend(self, body: type[S]) -> type[S]:
        """`body` with the sampling parameters and the refused fields that it does not have."""
        kinds = {row.aliases[self.protocol]: row.kind for row in SAMPLING.values()}
        fields: dict[Any, Any] = {one.field: Any for one in self.refused}
        fields |= {alias: _TYPES.get(kind, kind) | None for alias, kind in kinds.items() if alias}
        known = {one.name for one in msgspec.structs.fields(body)}
        new = [(name, kind, None) for name, kind in fields.items() if name not in known]
        extended: Any = msgspec.defstruct(body.__name__, new, bases=(body,), kw_only=True)
        found: type[S] = extended
        return found

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        """What a JSON schema says of each field besides its type; of sampling parameters those
        alone that are `known`, if it is given.
        """
        plain = [one for one in self._plain.items() if known is None or one[1] in known]
        found = {alias: SAMPLING[name].to_schema() for name, alias in plain}
        found |= {name: {"description": "ignored"} for name in self.ignored}
        for made in self.translated:
            meaning = " ".join(made.meaning.split())
            for name in made.fields:
                found.setdefault(name, {"description": meaning})
        for one in self.refused:
            if one.is_wrong is bool:
                found[one.field] = {"enum": _NOTHING, "description": one.problem}
            else:
                problem = one.problem.removeprefix("is {}, ")
                found.setdefault(one.field, {}).setdefault("description", problem)
        return found

    def refuse(self, body: msgspec.Struct) -> None:
        """Raises InvalidField for the first field that is refused."""
        for one in self.refused:
            value = getattr(body, one.field, None)
            if value is not None and one.is_wrong(value):
                before, has_value, behind = one.problem.partition("{}")
                shown = show(value) if has_value else ""
                raise InvalidField(one.field, f"{before}{shown}{behind}")

    def params(
        self, body: msgspec.Struct, card: ModelCard, defaults: Mapping[str, Any], **others: Any
    ) -> SamplingParams:
        """The sampling parameters of `body`, `defaults` where it gives none; `others` replace them.
        Raises InvalidField with the protocol's name of the field.
        """
        given = {name: getattr(body, alias) for name, alias in self._plain.items()}
        given |= {one.to: one.make(body, card) for one in self.translated if one.to in SAMPLING}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return SamplingParams(**{**defaults, **given, **others})
        except InvalidField as error:
            raise error.renamed(self.name_of(error.field, body)) from None

    def options(
        self, body: msgspec.Struct, card: ModelCard, *, has_sampling: bool = False
    ) -> dict[str, Any]:
        """What fields are translated to, by name, with or without sampling parameters.  Raises
        InvalidField.
        """
        rows = [one for one in self.translated if has_sampling or one.to not in SAMPLING]
        made = {one.to: one.make(body, card) for one in rows}
        return {name: value for name, value in made.items() if value is not None}

    def name_of(self, name: str, body: msgspec.Struct) -> str:
        """The protocol's name of a field of SamplingParams or Generate; of several the one that
        `body` gives.
        """
        for one in self.translated:
            if one.to == name:
                given = (field for field in one.fields if getattr(body, field, None) is not None)
                return next(given, one.fields[0])
        return self._plain.get(name, name)


def unexpected(field: str, given: object, accepted: str) -> InvalidField:
    """An error that says what `field` is, and what is accepted in its place."""
    return InvalidField(field, f"is {show(given)}, expected {accepted}")


def show(value: object) -> str:
    """`value` as JSON, cut off if it is long."""
    text = str(value) if type(value) is int else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def capped_header(field: str, *started: Started) -> dict[str, str]:
    """The header that names `field`, by which the length was asked for, if one of `started` is
    capped; nothing if there is no such field.
    """
    return {CAPPED: field} if field and any(one.is_capped for one in started) else {}


def field_of_length(fields: Fields, body: Any) -> str:
    """The protocol's name of `max_tokens`, as `body` gives it; "" if it does not."""
    name = fields.name_of("max_tokens", body)
    return name if getattr(body, name, None) is not None else ""
