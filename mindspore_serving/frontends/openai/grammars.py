"""Structured outputs: `response_format` and `structured_outputs` as a grammar."""

import re
from typing import Any

import msgspec

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.decoding import check_free

_GBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


_FIELDS = ("json_schema", "schema", "value", "structures")
_ACCEPTED = {  # by type: the fields that may accompany it
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "value"),
    "json": ("value",),
    "regex": ("value",),
    "structural_tag": ("structures",),
}
_TYPES = "text, json_object, json_schema, json, regex or structural_tag"
_EXPECTED = {
    "json_schema": "an object with name and schema",
    "json": "a schema",
    "regex": "a regular expression",
    "structural_tag": "a list of objects with begin, schema and end, beside triggers",
}


class JsonSchema(msgspec.Struct):
    """Named JSON schema of an answer."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class StructuralTag(msgspec.Struct):
    """Mark that begins in a text, JSON of a schema behind it, and the mark of its end."""

    begin: str
    schema: dict[str, Any]
    end: str


class ResponseFormat(msgspec.Struct):
    """Format of the answer.

    `schema`, `value`, `structures` and `triggers` are fields of other servers: llama.cpp and TGI
    put a schema beside `json_object`, TGI puts `value` beside every type, vLLM has tags.
    """

    type: str
    json_schema: JsonSchema | None = None
    schema: Any = None
    value: Any = None
    structures: list[StructuralTag] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's constraints of the answer; exactly one of them is set."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


def to_grammar(
    response_format: ResponseFormat | None,
    structured: StructuredOutputs | None,
    grammar: str | None = None,
) -> Grammar | None:
    """Return the grammar of the answer, None for free text.

    Raises InvalidField.
    """
    by_format = _of_format(response_format) if response_format is not None else None
    by_structure = _of_structure(structured) if structured is not None else None
    by_field = to_written_grammar(grammar) if grammar else None
    constraints = {
        "grammar": by_field,
        "response_format": by_format,
        "structured_outputs": by_structure,
    }
    present = [name for name, constraint in constraints.items() if constraint is not None]
    if len(present) > 1:
        text = f"{present[0]} and {present[1]} both constrain the answer: set only one"
        raise InvalidField(present[1], text=text)
    return by_format or by_structure or by_field


def to_written_grammar(source: str) -> Grammar:
    """Return a grammar in llama.cpp's form (GBNF) if a rule has `::=`, else in Lark."""
    return Grammar("gbnf" if _GBNF.search(source) else "lark", source)


def _of_format(response_format: ResponseFormat) -> Grammar | None:
    """Return the grammar of `response_format`, None for free text."""
    present = [name for name in _FIELDS if getattr(response_format, name) is not None]
    accepted = _ACCEPTED.get(response_format.type)
    if accepted is None:
        raise unexpected("response_format.type", response_format.type, _TYPES)
    wrong = [name for name in present if name not in accepted] or present[1:]
    if wrong:
        name = f"response_format.{wrong[0]}"
        raise InvalidField(
            name, f"cannot be combined with type {show(response_format.type)}: leave it out"
        )
    if response_format.type == "text":
        return None
    if not present and response_format.type != "json_object":
        name = f"response_format.{accepted[0]}"
        raise InvalidField(name, "is missing, expected " + _EXPECTED[response_format.type])
    if response_format.structures is not None:
        return _of_tags(response_format.structures, response_format.triggers or [])
    if response_format.json_schema is not None:
        return _of_schema("response_format.json_schema", response_format.json_schema)
    if not present:
        return Grammar("json_object")
    field = f"response_format.{present[0]}"
    return _of_value(response_format.type, field, getattr(response_format, present[0]))


def _of_tags(structures: list[StructuralTag], triggers: list[str]) -> Grammar:
    """Return the grammar of text with tags, each of which begins with one of `triggers`."""
    if not structures:
        raise unexpected("response_format.structures", structures, _EXPECTED["structural_tag"])
    for index, tag in enumerate(structures):
        name = f"response_format.structures[{index}]"
        check_free(f"{name}.schema", tag.schema)
        if not any(trigger and tag.begin.startswith(trigger) for trigger in triggers):
            raise unexpected(f"{name}.begin", tag.begin, "a text that begins with a trigger")
    source = msgspec.json.encode({"structures": structures, "triggers": triggers})
    return Grammar("structural_tag", source.decode())


def _of_value(kind: str, field: str, value: Any) -> Grammar:
    """Return the grammar of a format in the form of llama.cpp or TGI."""
    if kind == "regex":
        if not isinstance(value, str):
            raise unexpected(field, value, _EXPECTED[kind])
        return Grammar("regex", value)
    if kind == "json_schema":
        if not isinstance(value, dict) or "schema" not in value:
            raise unexpected(field, value, _EXPECTED[kind])
        field, value = f"{field}.schema", value["schema"]
    if isinstance(value, str):
        return Grammar("json_schema", value)
    if not isinstance(value, dict):
        raise unexpected(field, value, "a schema, or a string with it")
    check_free(field, value)
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def _of_schema(field: str, json_schema: JsonSchema) -> Grammar:
    """Return the grammar of a JSON schema.

    It is enforced whether or not the schema is strict; a strict one excludes properties that it
    does not list.
    """
    if not _SCHEMA_NAME.fullmatch(json_schema.name):
        raise unexpected(f"{field}.name", json_schema.name, "1 to 64 letters, digits, - or _")
    if json_schema.schema is None:
        return Grammar("json_object")
    check_free(f"{field}.schema", json_schema.schema)
    schema = closed(json_schema.schema) if json_schema.strict else json_schema.schema
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def _of_structure(structured: StructuredOutputs) -> Grammar:
    """Return the grammar of `structured_outputs`."""
    constraints = {
        name: value
        for name in ("json", "regex", "choice", "grammar")
        if (value := getattr(structured, name)) is not None
    }
    if len(constraints) != 1:
        raise InvalidField(
            "structured_outputs",
            f"has {', '.join(constraints) or 'none'}, expected exactly one of json, regex, choice "
            "and grammar",
        )
    ((name, value),) = constraints.items()
    if name == "choice":
        return _of_choices(value)
    if name != "json":
        return Grammar("regex", value) if name == "regex" else to_written_grammar(value)
    if isinstance(value, str):
        return Grammar("json_schema", value)
    check_free("structured_outputs.json", value)
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def _of_choices(choices: list[str]) -> Grammar:
    if not choices or not all(choices):
        raise unexpected("structured_outputs.choice", choices, "non-empty strings")
    words = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    # As a terminal: the compiler takes far more alternatives of one than of a rule.
    return Grammar("lark", f"start: CHOICE\nCHOICE: {words}")
