"""KServe's protocol v1: POST /v1/models/NAME:predict and GET /v1/models/NAME.

OpenAI's protocol answers GET for language models.  Values are those of the classic RESTful
protocol; the master does not parse them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Request
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import JSON, Body, ModelReady, to_object
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.v2 import v1_bodies
from mindspore_serving.frontends.v2.answers import V2Error
from mindspore_serving.frontends.v2.errors import to_response
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.json_shape import SMALL

_PATH = "/v1/models/"


_name = msgspec.json.Encoder().encode
_outputs = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def predict(v2: V2, http: HttpRequest) -> Response:
    """Call the default method of a servable."""
    model = v2.models.find(http.path_params["name"])
    if model.language is not None:
        raise InvalidInputs(f"'{model.name}' is a language model: call /v1/completions")
    return to_predictions(await infer_body(v2, http, model, v1_bodies.to_instances), model)


async def infer_body(
    v2: V2, http: HttpRequest, model: V2Model, read: Callable[[Buffer, Any], list[bytes]]
) -> list[bytes]:
    """Return the answer to each instance that `read` finds in the body.  Raises ServingError."""
    async with v2.decompressor.body(http, v2.state.max_body) as body:
        if len(body) <= SMALL:
            instances = read(body, model.signature.inputs)
        else:
            instances = await on_thread("bodies", read, body, model.signature.inputs)
    text = b'{"instances":[%b]}' % b",".join(instances)
    request = Request(model.servable, model.method, model.requested, "ms_json", text)
    request.timeout = request_options_of(http).timeout
    reply = await while_connected(http, infer(v2.state.inference, request))
    faults = [reply.failure, *(reply.faults or ())]
    fault: ServingError | None = next(filter(None, faults), None)
    if fault is not None:
        raise fault
    return list(map(bytes, reply.instances))


def to_predictions(instances: Sequence[bytes], model: V2Model, only: str = "") -> Response:
    """Return objects with outputs; plain values of a single output, or of the output `only`."""
    names = [spec.name for spec in model.signature.outputs]
    if only in names and len(names) > 1:
        objects = [_outputs.decode(instance) for instance in instances]
        instances = [bytes(outputs[only]) for outputs in objects]
    elif len(names) == 1:
        start = len(b"{%b:" % _name(names[0]))
        instances = [instance[start:-1] for instance in instances]
    answer = b'{"predictions":[%b]}' % b",".join(instances)
    return Response(answer, media_type="application/json")


async def show_ready(v2: V2, http: HttpRequest) -> Response:
    """Answer with the readiness of a servable."""
    name = http.path_params["name"]
    is_ready = v2.models.is_ready(name)
    return to_json(ModelReady(name, is_ready), 200 if is_ready else 503)


def _is_plain(v2: V2, scope: Scope) -> bool:
    """Return whether a path has the name of no language model."""
    name = scope["path"].removeprefix(_PATH)
    if is_predict(scope["path"]):
        return False
    return not has_models(v2.state.control) or v2.models.is_plain(name)


PROTOCOL = HttpProtocol(
    "kserve",
    to_response,
    title="KServe v1",
    about="KServe's protocol v1, for servables that are no language models.",
    errors={JSON: V2Error},
)
ROUTES = (
    HttpRoute(
        "POST",
        _PATH + "{name}:predict",
        predict,
        "Call the default method of a servable",
        {JSON: to_object({"predictions": {"type": "array"}})},
        body=Body(
            (
                to_object({"instances": {"type": "array", "minItems": 1}}),
                to_object({"dataframe_split": {"type": "object"}}),
                to_object({"dataframe_records": {"type": "array", "minItems": 1}}),
            )
        ),
        protocol=PROTOCOL,
    ),
    HttpRoute(
        "GET",
        _PATH + "{name:path}",
        show_ready,
        "Readiness of a servable",
        {JSON: ModelReady},
        other_answers={"503": {JSON: ModelReady}},
        protocol=PROTOCOL,
        applies=_is_plain,
    ),
)
