"""JSON schemas and structs of the requests of protocol v2, and schemas of tensors."""

from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.bodies import in_words
from mindspore_serving.frontends.chat import languages
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields
from mindspore_serving.frontends.chat.unknown_fields import KnownFields
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    STRING,
    Body,
    Lax,
    Schema,
    to_array,
    to_object,
)
from mindspore_serving.frontends.v2.answers import TextAnswer
from mindspore_serving.wire.v2 import datatypes

BOOL: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}
PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
TENSOR = to_object(
    {
        "name": STRING,
        "datatype": {"enum": list(datatypes.BY_NAME)},
        "shape": to_array(NUMBER),
        "data": {"type": "array"},
        "parameters": PARAMETERS,
    },
    "data",
    "parameters",
)
BINARY = "application/octet-stream"


_REFUSED = (
    FieldRefusal("best_of", "is {}, expected 1 or none", lambda value: value != 1),
    FieldRefusal("use_beam_search", "is not supported: use num_beams"),
    FieldRefusal("lora_name", "is not supported: the model is called by the adapter's name"),
)
FIELDS = Fields("v2", _REFUSED, languages.BOTH)


@FIELDS.extend
class SamplingFields(msgspec.Struct, kw_only=True):
    """Sampling parameters, added from their table; unknown ones are ignored."""

    src_lang: str | None = None
    tgt_lang: str | None = None


def read(fields: dict[str, Any]) -> SamplingFields:
    """Convert sampling parameters; numbers and booleans can be texts.  Raises InvalidField."""
    _KNOWN.find_in(fields)
    try:
        return msgspec.convert(fields, SamplingFields, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        raise InvalidField(name, text=f"parameter {name}: {in_words(text)}") from None


class GenerateFields(SamplingFields):
    """The body of /generate."""

    text_input: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    exclude_input_in_output: bool | None = None
    stream: bool | None = None


_KNOWN = KnownFields("protocol v2", GenerateFields)


def infer_request(inputs: Schema) -> dict[str, Any]:
    """Return the schema of a body of infer; `inputs` is that of its list of tensors."""
    output = to_object({"name": STRING, "parameters": PARAMETERS}, "parameters")
    fields = {
        "id": STRING,
        "parameters": PARAMETERS,
        "inputs": inputs,
        "outputs": to_array(output) | {"type": ["array", "null"]},
    }
    return to_object(fields, "id", "parameters", "outputs")


def infer_answer(outputs: Schema) -> dict[str, Any]:
    """Return the schema of an answer of infer; `outputs` is that of its list of tensors."""
    names = {"model_name": STRING, "model_version": STRING, "id": STRING}
    return to_object({**names, "outputs": outputs}, "id")


def generate_body(example: Any = None) -> Body:
    """Describe the body of generate."""
    return Body(GenerateFields, {GenerateFields: Lax(FIELDS)}, example)


def generate_answers(*, is_stream: bool) -> dict[str, Any]:
    """Describe the answers of generate by media type."""
    if is_stream:
        return {EVENTS: EVENT}
    return {JSON: TextAnswer}
