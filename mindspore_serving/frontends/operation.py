"""What a route takes and answers, in words that a document can be made of.

Types are msgspec's, or JSON schemas as they are.  Knows no route's work, and no document's form.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

JSON, EVENTS, TEXT, HTML = "application/json", "text/event-stream", "text/plain", "text/html"

Schema: TypeAlias = "Mapping[str, Any]"
Kind: TypeAlias = Any
"""A type that msgspec knows, or a Schema; of a tuple of them, any one."""

STRING: Schema = {"type": "string"}
MODEL = "{model}"
"""In an example and in what is said about a protocol: the name of a model that is served."""


class Describing(Protocol):
    """A table that says what a JSON schema has for each field besides its type, as `Fields`."""

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Unlimited:
    """The words of a `table` without its limits, where what is beyond them is told in a stream,
    whose status is 200 by then.
    """

    table: Describing

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        rows = self.table.describe(known).items()
        return {name: {"description": row.get("description", "")} for name, row in rows}


@dataclass(frozen=True, slots=True)
class Lax:
    """The words of a `table` of fields whose numbers and booleans may be texts."""

    table: Describing

    def describe(self, known: Container[str] | None = None) -> dict[str, dict[str, Any]]:
        return self.table.describe(known)


@dataclass(frozen=True, slots=True)
class Body:
    """What a request holds.  `fields` are the tables about the fields of structs in `kind`.
    `example` works when it is sent as it is, to the model whose name is MODEL in it.  `read_as` is
    what is decoded, if that is less strict.
    """

    kind: Kind
    fields: Mapping[type, Describing] = field(default_factory=dict)
    example: Any = None
    is_required: bool = True
    read_as: type | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A `verb` of a `path`, whose parameters stand in braces.

    `answers` are those with status 200, by media type; `others` those with other statuses that are
    no errors of the section's kind.  `query` are the names of texts that may be behind the path.
    `is_open` if it needs no key.
    """

    verb: str
    path: str
    summary: str
    answers: Mapping[str, Kind]
    body: Body | None = None
    others: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    query: tuple[str, ...] = ()
    is_open: bool = False


def to_object(properties: Mapping[str, Schema], *optional: str) -> dict[str, Any]:
    """The schema of an object with `properties`, of which `optional` ones may be missing."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        **({"required": required} if required else {}),
    }


def to_array(items: Schema, size: int | None = None, *, at_least: int = 0) -> dict[str, Any]:
    """The schema of a list of `size` items; of any number if that is None."""
    if size is not None:
        return {"type": "array", "items": dict(items), "minItems": size, "maxItems": size}
    return {"type": "array", "items": dict(items), **({"minItems": at_least} if at_least else {})}


EVENT = to_object({"data": STRING, "event": STRING}, "event")
"""An event of a stream; its data are JSON."""


class ModelReady(msgspec.Struct):
    """Readiness of a model, in protocols v1 and v2."""

    name: str
    ready: bool
