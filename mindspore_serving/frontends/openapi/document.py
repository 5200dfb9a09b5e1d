"""Making of an OpenAPI 3.1 document from sections of routes.  Knows no protocol."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mindspore_serving import __version__
from mindspore_serving.frontends.operation import (
    MODEL,
    STRING,
    Describing,
    Kind,
    Lax,
    Operation,
)
from mindspore_serving.frontends.routes import HttpRoute

VERSION = "3.1.0"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NUMBER = {"type": "integer", "minimum": 1, "maximum": 2**32 - 2}
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer"},
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "the key as password, for browsers",
    },
}
_RETRY = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
_ERRORS = {"4XX": "The request is invalid, or over a limit", "5XX": "The server cannot answer it"}

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """Routes of one protocol; `errors` are types by media type."""

    name: str
    about: str
    errors: Mapping[str, Kind]
    operations: Sequence[Operation | HttpRoute]


def to_document(sections: Sequence[Section], *, has_keys: bool, model: str = "") -> Object:
    """Return a document of `sections`, the last of which describes a repeated operation.

    With `has_keys`, routes that are not open need a key.  Examples are for `model`.
    """
    paths: dict[str, Object] = {}
    components: Object = {"schemas": {}, "responses": {}}
    for section in sections:
        kinds = _Kinds(section)
        for operation in section.operations:
            written = _operation(operation, kinds, model)
            if has_keys and operation.is_open:
                written["security"] = []
            path = operation.path.replace(":path}", "}")
            paths.setdefault(path, {})[operation.verb.lower()] = written
        components["schemas"] |= kinds.components
        components["responses"] |= kinds.errors
    _name(paths)
    security: Object = {}
    if has_keys:
        components["securitySchemes"] = _SCHEMES
        security = {"security": [{name: []} for name in _SCHEMES]}
    return {
        "openapi": VERSION,
        "info": {"title": "MindSpore Serving", "version": __version__},
        **security,
        "tags": [{"name": section.name, "description": section.about} for section in sections],
        "paths": paths,
        "components": components,
    }


def _name(paths: Mapping[str, Object]) -> None:
    """Set a unique operationId of each operation."""
    counts: Counter[str] = Counter()
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            name = _NO_NAME.sub("_", verb + path).strip("_")
            counts[name] += 1
            operation["operationId"] = name if counts[name] == 1 else f"{name}_{counts[name]}"


class _Kinds:
    """Schemas of the types of a section, with its `components` and `errors`."""

    def __init__(self, section: Section) -> None:
        self.tag = section.name
        prefix = _NO_NAME.sub("_", section.name)
        types = list(dict.fromkeys(_types_of(section)))
        schemas, components = msgspec.json.schema_components(types, ref_template="{name}")
        names = {name: f"{prefix}.{_short(name, section.name, components)}" for name in components}
        self._schemas = dict(zip(types, _with_references(schemas, names), strict=True))
        self.components = {
            names[name]: _with_references(schema, names) for name, schema in components.items()
        }
        for operation in section.operations:
            if operation.body is not None:
                self._describe(operation.body.fields)
        self.errors = {
            f"{prefix}.{status}": _error(status, section.errors, self) for status in _ERRORS
        }
        self.shared = {
            name.rpartition(".")[2]: {"$ref": f"#/components/responses/{name}"}
            for name in self.errors
        }

    def schema(self, kind: Kind) -> Object:
        if isinstance(kind, tuple):
            return {"anyOf": [self.schema(alternative) for alternative in kind]}
        return dict(kind) if isinstance(kind, Mapping) else self._schemas[kind]

    def _describe(self, tables: Mapping[type, Describing]) -> None:
        """Merge the tables' parts of the schemas of fields into the schemas of their structs."""
        for kind, fields in tables.items():
            struct = self.components[self._schemas[kind]["$ref"].rpartition("/")[2]]
            properties: Object = struct["properties"]
            known = {*properties}
            for name, words in fields.describe(known).items():
                if "enum" in words and name not in known:
                    continue  # a field that is only refused
                schema = {**properties.get(name, {}), **words}
                if schema.get("default", "") is None:
                    del schema["default"]
                properties[name] = schema
            if isinstance(fields, Lax):
                struct["properties"] = {
                    name: _or_text(schema) for name, schema in properties.items()
                }


def _short(name: str, protocol: str, names: Collection[str]) -> str:
    """Return the name of a type without the prefix of its protocol (TgiInfo: Info), if unique."""
    letters = re.sub(r"\W", "", protocol)
    short = re.sub(rf"^(?i:{letters})(?=[A-Z])", "", name)
    return name if short in names else short


def _with_references(schema: Any, names: Mapping[str, str]) -> Any:
    """Replace the names of types in references by references to components."""
    if isinstance(schema, Mapping):
        return {
            key: f"#/components/schemas/{names[value]}"
            if key == "$ref"
            else _with_references(value, names)
            for key, value in schema.items()
        }
    if isinstance(schema, list | tuple):
        return [_with_references(item, names) for item in schema]
    return schema


def _or_text(schema: Object) -> Object:
    """Allow texts for numbers and booleans of `schema`, and 0 and 1 for booleans."""
    kinds = {part.get("type") for part in (schema, *schema.get("anyOf", ()))}
    if kinds.isdisjoint(("integer", "number", "boolean")):
        return schema
    lax = [STRING, {"enum": [0, 1]}] if "boolean" in kinds else [STRING]
    return {"anyOf": [schema, *lax], "description": schema.get("description", "")}


def _types_of(section: Section) -> Iterator[type]:
    """Iterate over the types of a section that are not schemas."""
    kinds: list[Kind] = list(section.errors.values())
    for operation in section.operations:
        bodies = [operation.answers, *operation.other_answers.values()]
        kinds += [kind for body in bodies for kind in body.values()]
        if operation.body is not None:
            kinds += [operation.body.kind, *operation.body.fields]
    for kind in kinds:
        for alternative in kind if isinstance(kind, tuple) else (kind,):
            if not isinstance(alternative, Mapping):
                yield alternative


def _operation(operation: Operation | HttpRoute, kinds: _Kinds, model: str) -> Object:
    described: Object = {
        "tags": [kinds.tag],
        "summary": operation.summary,
        "responses": _responses(operation, kinds),
    }
    parameters = [*_parameters(operation)]
    if parameters:
        described["parameters"] = parameters
    body = operation.body
    if body is not None:
        content: Object = {"schema": kinds.schema(body.kind)}
        if body.example is not None:
            content["example"] = _example(body.example, model)
        described["requestBody"] = {
            "required": body.is_required,
            "content": {body.media: content},
        }
    return described


def _example(example: Any, model: str) -> Any:
    if isinstance(example, dict) and example.get("model") == MODEL:
        return {**example, "model": model}
    return example


def _parameters(operation: Operation | HttpRoute) -> Iterator[Object]:
    for name in _PARAMETER.findall(operation.path):
        schema = _NUMBER if name == "version" else {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name in operation.query:
        yield {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}


def _responses(operation: Operation | HttpRoute, kinds: _Kinds) -> Object:
    specific = {
        status: _error(status, answers, kinds)
        for status, answers in operation.other_answers.items()
    }
    answer = {"description": "The answer", **_content(operation.answers, kinds)}
    return {"200": answer, **kinds.shared, **specific}


def _error(status: str, answers: Mapping[str, Kind], kinds: _Kinds) -> Object:
    description = _ERRORS.get(status, "It is not ready")
    headers = {"retry-after": _RETRY}
    return {"description": description, "headers": headers, **_content(answers, kinds)}


def _content(answers: Mapping[str, Kind], kinds: _Kinds) -> Object:
    content = {media: {"schema": kinds.schema(kind)} for media, kind in answers.items()}
    return {"content": content} if content else {}
