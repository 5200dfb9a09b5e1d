"""The form of an answer, `response_format` and `structured_outputs`, as a grammar."""

import re
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.fields import show
from mindspore_serving.frontends.openai.decoding import check_free

_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchema(msgspec.Struct):
    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


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
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar("json_object")
    if wanted.type != "json_schema":
        raise _invalid("response_format.type", wanted.type, "text, json_object or json_schema")
    place = "response_format.json_schema"
    if wanted.json_schema is None:
        raise InvalidField(place, "is missing, expected an object with name and schema")
    return _of_schema(place, wanted.json_schema)


def _of_schema(place: str, wanted: JsonSchema) -> Grammar:
    """The grammar holds whether or not the schema is strict."""
    if not _SCHEMA_NAME.fullmatch(wanted.name):
        raise _invalid(f"{place}.name", wanted.name, "1 to 64 letters, digits, - or _")
    if wanted.schema is None:
        return Grammar("json_object")
    check_free(f"{place}.schema", wanted.schema)
    return Grammar("json_schema", msgspec.json.encode(wanted.schema).decode())


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
        raise _invalid("structured_outputs.choice", choices, "texts that are not empty")
    words = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    # As a terminal: the compiler takes far more alternatives of one than of a rule.
    return Grammar("lark", f"start: CHOICE\nCHOICE: {words}")


def _invalid(field: str, given: object, accepted: str) -> InvalidField:
    return InvalidField(field, f"is {show(given)}, expected {accepted}")
