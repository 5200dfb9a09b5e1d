"""What protocol v2 takes and answers, as JSON schemas."""

from typing import Any

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
from mindspore_serving.frontends.v2.fields import FIELDS, SamplingFields
from mindspore_serving.frontends.v2.models import TEXT_OUTPUT
from mindspore_serving.wire.v2 import datatypes

BOOL: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}
ERROR = {JSON: to_object({"error": STRING})}
PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
SHAPE = to_array({"type": "integer", "minimum": -1})
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
METADATA = to_object(
    {
        "name": STRING,
        "versions": to_array(STRING),
        "platform": STRING,
        "inputs": to_array(to_object({"name": STRING, "datatype": STRING, "shape": SHAPE})),
        "outputs": to_array(to_object({"name": STRING, "datatype": STRING, "shape": SHAPE})),
    }
)
REGION = to_object({"name": STRING, "key": STRING, "offset": NUMBER, "byte_size": NUMBER})
EMPTY = {JSON: to_array(REGION, 0)}
STATISTICS = to_object({"model_stats": to_array(OBJECT)})
BINARY = "application/octet-stream"


class GenerateFields(SamplingFields):
    """The body of /generate."""

    text_input: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    exclude_input_in_output: bool | None = None


def infer_request(inputs: Schema) -> dict[str, Any]:
    """`inputs` is the schema of the list of tensors."""
    output = to_object({"name": STRING, "parameters": PARAMETERS}, "parameters")
    fields = {
        "id": STRING,
        "parameters": PARAMETERS,
        "inputs": inputs,
        "outputs": to_array(output) | {"type": ["array", "null"]},
    }
    return to_object(fields, "id", "parameters", "outputs")


def infer_answer(outputs: Schema) -> dict[str, Any]:
    names = {"model_name": STRING, "model_version": STRING, "id": STRING}
    return to_object({**names, "outputs": outputs}, "id")


def generate_body(example: Any = None) -> Body:
    return Body(GenerateFields, {GenerateFields: Lax(FIELDS)}, example)


def generate_answers(*, is_stream: bool) -> dict[str, Any]:
    if is_stream:
        return {EVENTS: EVENT}
    texts: Schema = {"type": ["string", "array"], "items": STRING}
    names = {"model_name": STRING, "model_version": STRING, "id": STRING}
    return {JSON: to_object({**names, TEXT_OUTPUT: texts}, "id")}
