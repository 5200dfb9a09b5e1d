"""The form of an answer, `response_format` and `structured_outputs`, as a grammar."""

import re
from typing import Any

import msgspec

from mindspore_serving.core.json_schema import closed
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.decoding import check_free

_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


_BESIDE = ("json_schema", "schema", "value")
_ACCEPTED = {  # by type: what may be beside it
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "value"),
    "json": ("value",),
    "regex": ("value",),
}
_TYPES = "text, json_object, json_schema, json or regex"
_EXPECTED = {
    "json_schema": "an object with name and schema",
    "json": "a schema",
    "regex": "a regular expression",
}


class JsonSchema(msgspec.Struct):
    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`schema` and `value` are those of other servers: a schema beside `json_object` (llama.cpp,
    TGI), and what TGI has beside every type.
    """

    type: str
    json_schema: JsonSchema | None = None
    schema: Any = None
    value: Any = None


class StructuredOutputs(msgspec.Struct):
    """Just one is given."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


def to_grammar(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> Grammar | None:
    """Raises InvalidField."""
    by_format = _of_format(response_format) if response_format is not None else None
    by_structure = _of_structure(structured) if structured is not None else None
    if by_format is not None and by_structure is not None:
        raise InvalidField(
            "structured_outputs",
            text="response_format and structured_outputs both say what the answer looks like: "
            "give one",
        )
    return by_format or by_structure


def _of_format(wanted: ResponseFormat) -> Grammar | None:
    others = [name for name in _BESIDE if getattr(wanted, name) is not None]
    accepted = _ACCEPTED.get(wanted.type)
    if accepted is None:
        raise unexpected("response_format.type", wanted.type, _TYPES)
    wrong = [name for name in others if name not in accepted] or others[1:]
    if wrong:
        name = f"response_format.{wrong[0]}"
        raise InvalidField(name, f"does not go with type {show(wanted.type)}: leave it out")
    if wanted.type == "text":
        return None
    if not others and wanted.type != "json_object":
        name = f"response_format.{accepted[0]}"
        raise InvalidField(name, "is missing, expected " + _EXPECTED[wanted.type])
    if wanted.json_schema is not None:
        return _of_schema("response_format.json_schema", wanted.json_schema)
    if not others:
        return Grammar("json_object")
    place = f"response_format.{others[0]}"
    return _of_value(wanted.type, place, getattr(wanted, others[0]))


def _of_value(kind: str, place: str, value: Any) -> Grammar:
    """The forms of other servers."""
    if kind == "regex":
        if not isinstance(value, str):
            raise unexpected(place, value, _EXPECTED[kind])
        return Grammar("regex", value)
    if kind == "json_schema":
        if not isinstance(value, dict) or "schema" not in value:
            raise unexpected(place, value, _EXPECTED[kind])
        place, value = f"{place}.schema", value["schema"]
    if isinstance(value, str):
        return Grammar("json_schema", value)
    if not isinstance(value, dict):
        raise unexpected(place, value, "a schema, or its text")
    check_free(place, value)
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def _of_schema(place: str, wanted: JsonSchema) -> Grammar:
    """The grammar holds whether or not the schema is strict; a strict one has no properties but
    those that it states.
    """
    if not _SCHEMA_NAME.fullmatch(wanted.name):
        raise unexpected(f"{place}.name", wanted.name, "1 to 64 letters, digits, - or _")
    if wanted.schema is None:
        return Grammar("json_object")
    check_free(f"{place}.schema", wanted.schema)
    schema = closed(wanted.schema) if wanted.strict else wanted.schema
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def _of_structure(wanted: StructuredOutputs) -> Grammar:
    given = {
        name: value
        for name in ("json", "regex", "choice", "grammar")
        if (value := getattr(wanted, name)) is not None
    }
    if len(given) != 1:
        raise InvalidField(
            "structured_outputs",
            f"has {', '.join(given) or 'none'}, expected just one of json, regex, choice and "
            "grammar",
        )
    ((name, value),) = given.items()
    if name == "choice":
        return _of_choices(value)
    if name != "json":
        return Grammar("regex" if name == "regex" else "lark", value)
    if isinstance(value, str):
        return Grammar("json_schema", value)
    check_free("structured_outputs.json", value)
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def _of_choices(choices: list[str]) -> Grammar:
    if not choices or not all(choices):
        raise unexpected("structured_outputs.choice", choices, "texts that are not empty")
    words = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    # As a terminal: the compiler takes far more alternatives of one than of a rule.
    return Grammar("lark", f"start: CHOICE\nCHOICE: {words}")
