"""KServe's protocol v1: POST /v1/models/NAME:predict and GET /v1/models/NAME.

OpenAI's protocol answers GET for language models.  Values are those of the classic RESTful
protocol; the master does not parse them.
"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Request
from mindspore_serving.errors import InvalidInputs, ServingError, TooLarge
from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import JSON, Body, ModelReady, to_object
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.v2.answers import V2Error
from mindspore_serving.frontends.v2.errors import to_response
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.json_literals import RawDecoder
from mindspore_serving.wire.json_shape import SMALL, has_more_items
from mindspore_serving.wire.tensor import MAX_INSTANCES

_PATH = "/v1/models/"


class _Body(msgspec.Struct):
    instances: list[msgspec.Raw] | None = None
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_body = RawDecoder[_Body](_Body)
_name = msgspec.json.Encoder().encode


async def predict(v2: V2, http: HttpRequest) -> Response:
    """Call the default method of a servable."""
    model = v2.models.find(http.path_params["name"])
    if model.language is not None:
        raise InvalidInputs(f"'{model.name}' is a language model: call /v1/completions")
    async with v2.decompressor.body(http, v2.state.max_body) as body:
        if len(body) <= SMALL:
            instances = _instances(body, model)
        else:
            instances = await on_thread("bodies", _instances, body, model)
        return await _answer(v2, http, model, instances)


async def _answer(v2: V2, http: HttpRequest, model: V2Model, instances: list[bytes]) -> Response:
    body = b'{"instances":[%b]}' % b",".join(instances)
    request = Request(model.servable, model.method, model.version, "ms_json", body)
    request.timeout = request_options_of(http).timeout
    reply = await while_connected(http, infer(v2.state.inference, request))
    faults = [reply.failure, *(reply.faults or ())]
    fault: ServingError | None = next(filter(None, faults), None)
    if fault is not None:
        raise fault
    answer = b'{"predictions":[%b]}' % b",".join(
        _predictions(list(map(bytes, reply.instances)), model)
    )
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
        body=Body(to_object({"instances": {"type": "array", "minItems": 1}})),
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


def _instances(body: Buffer, model: V2Model) -> list[bytes]:
    """Return each instance as an object with inputs; a plain value is the only input.

    Raises InvalidInputs.
    """
    if len(body) > SMALL and has_more_items(body, MAX_INSTANCES - 1, depth=1):
        raise TooLarge(f"A request has at most {MAX_INSTANCES} instances")
    try:
        decoded = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None
    if decoded.inputs is not msgspec.UNSET:
        raise InvalidInputs("'inputs' is not available, send 'instances'")
    if not decoded.instances:
        raise InvalidInputs("'instances' is missing, or an empty list")
    needed = [spec.name for spec in model.signature.inputs if not spec.is_optional]
    return [_named(bytes(item), needed) for item in decoded.instances]


def _named(item: bytes, needed: Sequence[str]) -> bytes:
    if item.startswith(b"{") and not (len(needed) == 1 and item.startswith(b'{"b64"')):
        return item
    if len(needed) != 1:
        raise InvalidInputs(
            f"an instance is not an object with the {len(needed)} inputs: {', '.join(needed)}"
        )
    return b"{%b:%b}" % (_name(needed[0]), item)


def _predictions(instances: Sequence[bytes], model: V2Model) -> Sequence[bytes]:
    """Return the instances as objects with outputs; plain values if there is one output."""
    if len(model.signature.outputs) != 1:
        return instances
    start = len(b"{%b:" % _name(model.signature.outputs[0].name))
    return [bytes(instance[start:-1]) for instance in instances]
