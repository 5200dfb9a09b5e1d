"""KServe's protocol v1: POST /v1/models/NAME:predict, and GET /v1/models/NAME for names that are no
language models, which OpenAI's protocol answers.

Values are those of the classic RESTful protocol; JSON is put around them, and none is read.
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
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.health import has_models
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import JSON, Body, ModelReady, to_object
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.terms import terms_of
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
    model = v2.models.find(http.path_params["name"])
    if model.language is not None:
        raise InvalidInputs(f"'{model.name}' is a language model: call /v1/completions")
    async with v2.inflating.body(http, v2.state.max_body) as given:
        if len(given) <= SMALL:
            instances = _instances(given, model)
        else:
            instances = await on_thread("bodies", _instances, given, model)
        return await _answer(v2, http, model, instances)


async def _answer(v2: V2, http: HttpRequest, model: V2Model, instances: list[bytes]) -> Response:
    body = b'{"instances":[%b]}' % b",".join(instances)
    request = Request(model.servable, model.method, model.version, "ms_json", body)
    request.timeout = terms_of(http).timeout
    reply = await while_there(http, infer(v2.state.inference, request))
    faults = [reply.failure, *(reply.faults or ())]
    fault: ServingError | None = next((one for one in faults if one is not None), None)
    if fault is not None:
        raise fault
    found = b'{"predictions":[%b]}' % b",".join(
        _predictions(list(map(bytes, reply.instances)), model)
    )
    return Response(found, media_type="application/json")


async def show_ready(v2: V2, http: HttpRequest) -> Response:
    name = http.path_params["name"]
    is_ready = v2.models.is_ready(name)
    return to_json(ModelReady(name, is_ready), 200 if is_ready else 503)


def _is_of_others(v2: V2, scope: Scope) -> bool:
    """Whether a model is no language model; all are where there are none of these."""
    name = scope["path"].removeprefix(_PATH)
    if is_predict(scope["path"]):
        return False
    return not has_models(v2.state.control) or v2.models.is_other(name)


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
        "Whether a servable can be called",
        {JSON: ModelReady},
        others={"503": {JSON: ModelReady}},
        protocol=PROTOCOL,
        is_meant=_is_of_others,
    ),
)


def _instances(body: Buffer, model: V2Model) -> list[bytes]:
    """Each as an object with inputs; a value alone is the only input.  Raises InvalidInputs."""
    if len(body) > SMALL and has_more_items(body, MAX_INSTANCES - 1, depth=1):
        raise TooLarge(f"A request has at most {MAX_INSTANCES} instances")
    try:
        found = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None
    if found.inputs is not msgspec.UNSET:
        raise InvalidInputs("'inputs' is not available, send 'instances'")
    if not found.instances:
        raise InvalidInputs("'instances' is missing, or an empty list")
    needed = [one.name for one in model.signature.inputs if not one.is_optional]
    return [_named(bytes(item), needed) for item in found.instances]


def _named(item: bytes, needed: Sequence[str]) -> bytes:
    if item.startswith(b"{") and not (len(needed) == 1 and item.startswith(b'{"b64"')):
        return item
    if len(needed) != 1:
        raise InvalidInputs(
            f"an instance is no object with the {len(needed)} inputs: {', '.join(needed)}"
        )
    return b"{%b:%b}" % (_name(needed[0]), item)


def _predictions(instances: Sequence[bytes], model: V2Model) -> Sequence[bytes]:
    """Objects with the outputs; the value alone of a method that has one."""
    if len(model.signature.outputs) != 1:
        return instances
    start = len(b"{%b:" % _name(model.signature.outputs[0].name))
    return [bytes(one[start:-1]) for one in instances]
