"""Descriptions of the requests and answers of routes, from which OpenAPI is made.

Types are those of msgspec, or JSON schemas.  Knows no handler and no form of a document.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

JSON, EVENTS, TEXT, HTML = "application/json", "text/event-stream", "text/plain", "text/html"

Schema: TypeAlias = "Mapping[str, Any]"
Kind: TypeAlias = Any
"""A type of msgspec, a Schema, or a tuple of alternatives."""

STRING: Schema = {"type": "string"}
MODEL = "{model}"
"""Placeholder in examples and descriptions: the name of a deployed model."""


class Describing(Protocol):
    """A table of fields with parts of their JSON schemas besides the type, such as `Fields`."""

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return parts of a JSON schema by the name of a field, of `known` fields if given."""
        ...


@dataclass(frozen=True, slots=True)
class Unlimited:
    """The descriptions of a `table` without its limits.

    It is for streams, which report a value beyond a limit after the status 200.
    """

    table: Describing

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        rows = self.table.describe(known).items()
        return {name: {"description": row.get("description", "")} for name, row in rows}


@dataclass(frozen=True, slots=True)
class Lax:
    """A `table` of fields whose numbers and booleans can be texts."""

    table: Describing

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        return self.table.describe(known)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    `fields` has tables that describe the fields of structs in `kind`.  `example` is a valid body,
    with MODEL for the name of a model.  `read_as` is the type that is decoded, if it is less strict
    than `kind`.  `respell` gives fields of a body of `kind` the names that they have there.
    `media` is its media type.
    """

    kind: Kind
    fields: Mapping[type, Describing] = field(default_factory=dict)
    example: Any = None
    is_required: bool = True
    read_as: type | None = None
    respell: Callable[[bytes, type], bytes] | None = None
    media: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """A method (`verb`) of a `path`, whose parameters are in braces.

    `answers` have status 200, by media type; `other_answers` have other statuses and are no errors
    of the protocol.  `query` has the names of optional query parameters, which are texts.  No key
    is needed if `is_open`.
    """

    verb: str
    path: str
    summary: str
    answers: Mapping[str, Kind]
    body: Body | None = None
    other_answers: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    query: tuple[str, ...] = ()
    is_open: bool = False


def to_object(properties: Mapping[str, Schema], *optional: str) -> dict[str, Any]:
    """Return the schema of an object with `properties`, of which `optional` are not required."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        **({"required": required} if required else {}),
    }


def to_array(items: Schema, size: int | None = None, *, at_least: int = 0) -> dict[str, Any]:
    """Return the schema of a list of `size` items; None is any number, with `at_least` items."""
    if size is not None:
        return {"type": "array", "items": dict(items), "minItems": size, "maxItems": size}
    return {"type": "array", "items": dict(items), **({"minItems": at_least} if at_least else {})}


EVENT = to_object({"data": STRING, "event": STRING}, "event")
"""Schema of an event of a stream; its data are JSON."""


class ModelReady(msgspec.Struct):
    """Readiness of a model, in protocols v1 and v2."""

    name: str
    ready: bool
