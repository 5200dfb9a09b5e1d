"""What the routes of protocol v2 and KServe's protocol v1 take and answer, whatever the model."""

from collections.abc import Iterator
from typing import Any

from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    READY,
    STRING,
    Body,
    Lax,
    Operation,
    Schema,
    Section,
    to_array,
    to_object,
)
from mindspore_serving.frontends.v2.fields import FIELDS, SamplingFields
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import TEXT_OUTPUT
from mindspore_serving.frontends.v2.settings import log_settings, trace_settings
from mindspore_serving.wire.v2 import datatypes

V2_ABOUT = "The Open Inference Protocol v2: every servable is a model, and NAME.METHOD any method."
V1_ABOUT = "KServe's protocol v1, for servables that are no language models."
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
_BASES = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
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


def v2_section(v2: V2, *, allows_loading: bool, has_language: bool) -> Section:
    """What callers of this server may do, with or without language models."""
    operations = [*_of_server(allows_loading=allows_loading), *_of_models()]
    operations += _of_repository(allows_loading=allows_loading)
    if has_language:
        operations += _of_texts()
    if v2.memory.is_enabled:
        operations += _of_memory()
    return Section("Open Inference Protocol v2", V2_ABOUT, ERROR, tuple(operations))


def v1_section() -> Section:
    body = Body(to_object({"instances": {"type": "array", "minItems": 1}}))
    answer = {JSON: to_object({"predictions": {"type": "array"}})}
    path = "/v1/models/{name}:predict"
    predict = Operation("POST", path, "Call the default method of a servable", answer, body)
    ready = {JSON: READY}
    path = "/v1/models/{name}"
    text = "Whether a servable can be called"
    get = Operation("GET", path, text, ready, others={"503": ready})
    return Section("KServe v1", V1_ABOUT, ERROR, (predict, get))


def generate_body(example: Any = None) -> Body:
    return Body(GenerateFields, {GenerateFields: Lax(FIELDS)}, example)


def generate_answers(*, is_stream: bool) -> dict[str, Any]:
    if is_stream:
        return {EVENTS: EVENT}
    texts: Schema = {"type": ["string", "array"], "items": STRING}
    names = {"model_name": STRING, "model_version": STRING, "id": STRING}
    return {JSON: to_object({**names, TEXT_OUTPUT: texts}, "id")}


def _of_server(*, allows_loading: bool) -> Iterator[Operation]:
    metadata = to_object({"name": STRING, "version": STRING, "extensions": to_array(STRING)})
    live, ready = {JSON: to_object({"live": BOOL})}, {JSON: to_object({"ready": BOOL})}
    yield Operation("GET", "/v2", "The server", {JSON: metadata})
    yield Operation("GET", "/v2/health/live", "Whether the server answers", live, is_open=True)
    path = "/v2/health/ready"
    text = "Whether all models can be called"
    yield Operation("GET", path, text, ready, others={"503": ready}, is_open=True)
    for path, present in (
        ("/v2/logging", log_settings()),
        ("/v2/trace/setting", trace_settings(None)),
        ("/v2/models/{name}/trace/setting", trace_settings(None)),
    ):
        what = "Which levels are logged" if "logging" in path else "How requests are traced"
        answer = {JSON: to_object(dict.fromkeys(present, {}))}
        yield Operation("GET", path, what, answer)
        text = f"Change it: {what.lower()}"
        if "logging" in path and not allows_loading:
            text = "Clients may not change it: 403, but for an empty object"
        yield Operation("POST", path, text, answer, Body(OBJECT, example={}, is_required=False))


def _of_models() -> Iterator[Operation]:
    names = to_object({"models": to_array(STRING)})
    yield Operation("GET", "/v2/models", "The names of the models", {JSON: names})
    yield Operation("GET", "/v2/models/stats", "Statistics of all models", {JSON: STATISTICS})
    infer = {JSON: infer_answer(to_array(TENSOR)), BINARY: {}}
    infer_body = Body(infer_request(to_array(TENSOR, at_least=1)))
    for base in _BASES:
        yield Operation("GET", base, "What a model takes and gives", {JSON: METADATA})
        yield Operation("GET", f"{base}/config", "Triton's configuration of it", {JSON: OBJECT})
        ready, text = {JSON: READY}, "Whether it can be called"
        yield Operation("GET", f"{base}/ready", text, ready, others={"503": ready})
        yield Operation("GET", f"{base}/stats", "Its statistics", {JSON: STATISTICS})
        yield Operation("POST", f"{base}/infer", "Call a model", infer, infer_body)


def _of_texts() -> Iterator[Operation]:
    for base in _BASES:
        for name, is_stream in (("generate", False), ("generate_stream", True)):
            text = "Continue a text, as events" if is_stream else "Continue a text"
            answers = generate_answers(is_stream=is_stream)
            yield Operation("POST", f"{base}/{name}", text, answers, generate_body())


def _of_repository(*, allows_loading: bool) -> Iterator[Operation]:
    row = dict.fromkeys(("name", "version", "state", "reason"), STRING)
    index = to_object({"ready": {"type": ["boolean", "null"]}}, "ready")
    options = to_object({"reload": BOOL, "config": STRING}, "reload", "config")
    load = to_object({"parameters": options | {"type": ["object", "null"]}}, "parameters")
    for base in ("/v2/repository", "/v2/repository/{repository}"):
        body = Body(index, example={}, is_required=False)
        answers = {JSON: to_array(to_object(row))}
        yield Operation("POST", f"{base}/index", "What is or could be loaded", answers, body)
        if allows_loading:
            path, body = f"{base}/models/{{name}}", Body(load, is_required=False)
            yield Operation("POST", f"{path}/load", "Load or reload a servable", {}, body)
            body = Body(OBJECT, is_required=False)
            yield Operation("POST", f"{path}/unload", "Unload a servable", {}, body)


def _of_memory() -> Iterator[Operation]:
    base, gpu = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    yield Operation("GET", f"{gpu}/status", "None: memory of GPUs cannot be registered", EMPTY)
    yield Operation("POST", f"{gpu}/unregister", "There is none to be forgotten", {})
    regions, region = {JSON: to_array(REGION)}, f"{base}/region/{{region}}"
    place = to_object({"key": STRING, "offset": NUMBER, "byte_size": NUMBER}, "offset")
    yield Operation("GET", f"{base}/status", "Registered regions of shared memory", regions)
    yield Operation("GET", f"{region}/status", "A registered region", regions)
    yield Operation("POST", f"{region}/register", "Register a region", {}, Body(place))
    yield Operation("POST", f"{region}/unregister", "Forget a region", {})
    yield Operation("POST", f"{base}/unregister", "Forget all regions", {})
