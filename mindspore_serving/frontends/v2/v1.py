"""KServe's protocol v1: POST /v1/models/NAME:predict, and GET /v1/models/NAME for names that are no
language models, which OpenAI's protocol answers.

Values are those of the classic RESTful protocol; JSON is put around them, and none is read.
"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from mindspore_serving.aio import on_thread
from mindspore_serving.core.pieces import Buffer
from mindspore_serving.core.service import Request
from mindspore_serving.errors import InvalidInputs, ServingError, TooLarge
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.health import still_loading
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.terms import terms_of
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import Model
from mindspore_serving.frontends.v2.routes import route
from mindspore_serving.wire.json_literals import RawDecoder
from mindspore_serving.wire.json_shape import SMALL, has_more_items
from mindspore_serving.wire.tensor import MAX_INSTANCES

_PATH = "/v1/models/"


class _Body(msgspec.Struct):
    instances: list[msgspec.Raw] | None = None
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_body = RawDecoder[_Body](_Body)
_name = msgspec.json.Encoder().encode


def routes(v2: V2, max_body: int) -> list[BaseRoute]:
    """To be asked before OpenAI's.  `max_body` is in bytes."""

    async def predict(http: HttpRequest) -> Response:
        model = v2.models.find(http.path_params["name"])
        if model.language is not None:
            raise InvalidInputs(f"'{model.name}' is a language model: call /v1/completions")
        async with v2.inflating.body(http, max_body) as given:
            if len(given) <= SMALL:
                instances = _instances(given, model)
            else:
                instances = await on_thread("bodies", _instances, given, model)
            return await answer(http, model, instances)

    async def answer(http: HttpRequest, model: Model, instances: list[bytes]) -> Response:
        body = b'{"instances":[%b]}' % b",".join(instances)
        request = Request(model.servable, model.method, model.version, "ms_json", body)
        request.timeout = terms_of(http).timeout
        reply = await while_there(http, infer(v2.site.inference, request))
        faults = [reply.failure, *(reply.faults or ())]
        fault: ServingError | None = next((one for one in faults if one is not None), None)
        if fault is not None:
            raise fault
        found = b'{"predictions":[%b]}' % b",".join(
            _predictions(list(map(bytes, reply.instances)), model)
        )
        return Response(found, media_type="application/json")

    async def ready(http: HttpRequest) -> Response:
        name = http.path_params["name"]
        is_ready = v2.models.is_ready(name)
        return to_json({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    by_name = route(_PATH + "{name}", {"GET": ready})
    return [route(_PATH + "{name}:predict", {"POST": predict}), _OfOthers(v2, by_name)]


class _OfOthers(Route):
    """The route of a model, for those that are no language models; for all names where there are
    none of these."""

    def __init__(self, v2: V2, route: Route) -> None:
        super().__init__(route.path, route.endpoint, methods=["GET"])
        self._models = v2.models
        self._control = v2.site.control

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is not Match.FULL or not self._has(found["path_params"]["name"]):
            return Match.NONE, {}
        return match, found

    def _has(self, name: str) -> bool:
        if name.endswith(":predict"):
            return False
        control = self._control
        has_others = control.has_language_models or still_loading(control) is not None
        return not has_others or self._models.is_other(name)


def _instances(body: Buffer, model: Model) -> list[bytes]:
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


def _predictions(instances: Sequence[bytes], model: Model) -> Sequence[bytes]:
    """Objects with the outputs; the value alone of a method that has one."""
    if len(model.signature.outputs) != 1:
        return instances
    start = len(b"{%b:" % _name(model.signature.outputs[0].name))
    return [bytes(one[start:-1]) for one in instances]
