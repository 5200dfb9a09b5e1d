"""Tables of a protocol's fields: sampling parameters, translated, refused and ignored fields.

The structs that bodies are decoded to, refusals, translations and documentation are made from these
tables. Knows no protocol.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from mindspore_serving.core.llm_messages import Started
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams, fill_in
from mindspore_serving.errors import InvalidField

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_TYPES: dict[Any, Any] = {int: Int, list[int]: list[Int], dict[int, float]: dict[Int, float]}
CAPPED = "x-capped-fields"  # header naming the field that asked for more than the context holds
_MAX_SHOWN = 80  # characters of a wrong value in an error
_NOTHING: list[Any] = [None, False, 0, "", [], {}]  # values equivalent to leaving a field out

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FieldRefusal:
    """Refusal of `field` if `is_wrong` of its value; "{}" in `problem` stands for the value."""

    field: str
    problem: str
    is_wrong: Callable[[Any], bool] = bool


Make = Callable[[Any, ModelCard], Any]


@dataclass(frozen=True, slots=True)
class Translation:
    """Makes field `to` of SamplingParams, or of another request, from `fields` of a body.

    `make` takes the body and the model's card; it returns None to leave the field out, and raises
    InvalidField. `meaning` is the description in docs and in /openapi.json.
    """

    fields: tuple[str, ...]
    to: str
    meaning: str
    make: Make


def translation(*fields: str, to: str = "") -> Callable[[Make], Translation]:
    """Turn a function into a Translation with its docstring as the meaning.

    `to` defaults to the first of `fields`. Errors name the one of `fields` that the body has.
    """
    return lambda make: Translation(fields, to or fields[0], make.__doc__ or "", make)


@dataclass(frozen=True, slots=True)
class Fields:
    """Tables of the fields of a protocol, a name in `core.params.PROTOCOLS`.

    Sampling parameters that are not translated have the protocol's names, and null means "not set".
    `ignored` lists fields that are accepted without effect; unknown fields are ignored as well.
    """

    protocol: str
    refused: tuple[FieldRefusal, ...] = ()
    translated: tuple[Translation, ...] = ()
    ignored: tuple[str, ...] = ()
    _plain: Mapping[str, str] = field(init=False)  # parameter -> field

    def __post_init__(self) -> None:
        aliases = {name: row.aliases[self.protocol] for name, row in SAMPLING.items()}
        translated = {row.to for row in self.translated}
        untranslated = {name: alias for name, alias in aliases.items() if name not in translated}
        plain = {name: alias for name, alias in untranslated.items() if alias}
        object.__setattr__(self, "_plain", plain)

    def extend(self, body: type[S]) -> type[S]:
        """Add the sampling parameters and refused fields to `body`, except those that it has."""
        kinds = {row.aliases[self.protocol]: row.kind for row in SAMPLING.values()}
        fields: dict[Any, Any] = {refusal.field: Any for refusal in self.refused}
        fields |= {alias: _TYPES.get(kind, kind) | None for alias, kind in kinds.items() if alias}
        known = {field.name for field in msgspec.structs.fields(body)}
        new = [(name, kind, None) for name, kind in fields.items() if name not in known]
        extended: Any = msgspec.defstruct(body.__name__, new, bases=(body,), kw_only=True)
        result: type[S] = extended
        return result

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return what a JSON schema says of each field besides its type.

        Of the sampling parameters, only those in `known` are described, if it is set.
        """
        described = {
            alias: SAMPLING[name].to_schema()
            for name, alias in self._plain.items()
            if known is None or alias in known
        }
        described |= {name: {"description": "ignored"} for name in self.ignored}
        for row in self.translated:
            meaning = " ".join(row.meaning.split())
            for name in row.fields:
                described.setdefault(name, {"description": meaning})
        for refusal in self.refused:
            if refusal.is_wrong is bool:
                described[refusal.field] = {"enum": _NOTHING, "description": refusal.problem}
            else:
                problem = refusal.problem.removeprefix("is {}, ")
                described.setdefault(refusal.field, {}).setdefault("description", problem)
        return described

    def refuse(self, body: msgspec.Struct) -> None:
        """Check for refused fields.

        Raises InvalidField for the first one.
        """
        for refusal in self.refused:
            value = getattr(body, refusal.field, None)
            if value is not None and refusal.is_wrong(value):
                before, has_value, after = refusal.problem.partition("{}")
                shown = show(value) if has_value else ""
                raise InvalidField(refusal.field, f"{before}{shown}{after}")

    def params(
        self, body: msgspec.Struct, card: ModelCard, defaults: Mapping[str, Any], **overrides: Any
    ) -> SamplingParams:
        """Return the sampling parameters of `body`.

        `defaults` fill in what it leaves out, `overrides` replace its values.  A body with both
        `temperature` and `top_p` has chosen all that OpenAI's API has: it is drawn without the cuts
        of the server.  Raises InvalidField with the protocol's name of the field.
        """
        values = {name: getattr(body, alias) for name, alias in self._plain.items()}
        values |= {row.to: row.make(body, card) for row in self.translated if row.to in SAMPLING}
        values = {name: value for name, value in values.items() if value is not None}
        if "temperature" in values and "top_p" in values:
            defaults = {n: value for n, value in defaults.items() if n not in card.sampling_cuts}
        try:
            return SamplingParams(**{**fill_in(defaults, values), **overrides})
        except InvalidField as error:
            raise error.renamed(self.name_of(error.field, body)) from None

    def options(
        self, body: msgspec.Struct, card: ModelCard, *, has_sampling: bool = False
    ) -> dict[str, Any]:
        """Return the translated fields by name, with or without sampling parameters.

        Raises InvalidField.
        """
        rows = [row for row in self.translated if has_sampling or row.to not in SAMPLING]
        options = {row.to: row.make(body, card) for row in rows}
        return {name: value for name, value in options.items() if value is not None}

    def name_of(self, name: str, body: msgspec.Struct) -> str:
        """Return the protocol's name of a field of SamplingParams or Generate.

        If it is made of several fields, return the one that `body` has.
        """
        for row in self.translated:
            if row.to == name:
                present = (field for field in row.fields if getattr(body, field, None) is not None)
                return next(present, row.fields[0])
        return self._plain.get(name, name)


def unexpected(field: str, value: object, accepted: str) -> InvalidField:
    """Return an error that says what `field` is and which values are accepted."""
    return InvalidField(field, f"is {show(value)}, expected {accepted}")


def at_least_zero(field: str, value: int | None) -> int | None:
    """Return `value` of a nested `field`.  Raises InvalidField if it is negative."""
    if value is not None and value < 0:
        raise unexpected(field, value, "an integer >= 0")
    return value


def show(value: object) -> str:
    """Return `value` as JSON, truncated if it is long."""
    text = str(value) if type(value) is int else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def capped_header(field: str, *started: Started) -> dict[str, str]:
    """Return the header that names `field` if one of `started` was capped.

    `field` limits the length; without one ("") there is no header.
    """
    return {CAPPED: field} if field and any(event.is_capped for event in started) else {}


def field_of_length(fields: Fields, body: Any) -> str:
    """Return the protocol's name of `max_tokens` if `body` has it, else ""."""
    name = fields.name_of("max_tokens", body)
    return name if getattr(body, name, None) is not None else ""
