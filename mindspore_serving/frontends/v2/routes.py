"""The routes of protocol v2 over HTTP."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.chat.endpoint import Answer, Endpoints
from mindspore_serving.frontends.chat.fields import show
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.v2 import generating, repository, settings
from mindspore_serving.frontends.v2.descriptions import (
    server_metadata,
    to_config,
    to_metadata,
    to_statistics,
)
from mindspore_serving.frontends.v2.errors import to_response
from mindspore_serving.frontends.v2.http_inference import infer
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.wire.v2.request import to_version

_MAX_SMALL = 1 << 20  # bytes of a body that holds settings

_ENDPOINTS = Endpoints(to_response)
Model = tuple[str, int]  # name and version


def routes(v2: V2, max_body: int) -> list[BaseRoute]:
    """All of them.  `max_body` is in bytes."""

    async def infer_one(http: Request) -> Response:
        return await infer(v2, http, model_of(http), max_body)

    async def generate(http: Request) -> Response:
        return await generating.generate(v2, http, model_of(http), max_body)

    async def generate_stream(http: Request) -> Response:
        return await generating.generate_stream(v2, http, model_of(http), max_body)

    return [
        *_server_routes(v2),
        *_model_routes(v2),
        *_at_model("/infer", {"POST": infer_one}),
        *_at_model("/generate", {"POST": generate}),
        *_at_model("/generate_stream", {"POST": generate_stream}),
        *_repository_routes(v2),
        *_memory_routes(v2),
    ]


def _server_routes(v2: V2) -> list[BaseRoute]:
    async def metadata(_: Request) -> Response:
        return to_json(server_metadata(has_memory=v2.memory.is_enabled))

    async def live(_: Request) -> Response:
        return to_json({"live": True})

    async def ready(_: Request) -> Response:
        is_ready = v2.site.control.is_ready
        return to_json({"ready": is_ready}, 200 if is_ready else 503)

    async def show_log(_: Request) -> Response:
        return to_json(settings.log_settings())

    async def change_log(http: Request) -> Response:
        changes = await _object(http)
        settings.check_log_changes(v2.site.repository, changes)
        return to_json(settings.change_log_settings(changes))

    async def show_trace(_: Request) -> Response:
        return to_json(settings.trace_settings(v2.traces))

    async def change_trace(http: Request) -> Response:
        return to_json(settings.change_trace_settings(await _object(http), v2.traces))

    return [
        route("/v2", {"GET": metadata}),
        route("/v2/health/live", {"GET": live}),
        route("/v2/health/ready", {"GET": ready}),
        route("/v2/logging", {"GET": show_log, "POST": change_log}),
        route("/v2/trace/setting", {"GET": show_trace, "POST": change_trace}),
        route("/v2/models/{name}/trace/setting", {"GET": show_trace, "POST": change_trace}),
    ]


def _model_routes(v2: V2) -> list[BaseRoute]:
    async def models(_: Request) -> Response:
        return to_json({"models": v2.models.names()})

    async def metadata(http: Request) -> Response:
        return to_json(to_metadata(v2.models.find(*model_of(http))))

    async def config(http: Request) -> Response:
        return to_json(to_config(v2.models.find(*model_of(http))))

    async def ready(http: Request) -> Response:
        name, version = model_of(http)
        is_ready = v2.models.is_ready(name, version)
        return to_json({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def statistics(http: Request) -> Response:
        return to_json(to_statistics(v2.site.control, v2.models.loaded(*model_of(http))))

    async def all_statistics(_: Request) -> Response:
        return to_json(to_statistics(v2.site.control, v2.models.loaded()))

    return [
        route("/v2/models", {"GET": models}),
        route("/v2/models/stats", {"GET": all_statistics}),
        *_at_model("", {"GET": metadata}),
        *_at_model("/config", {"GET": config}),
        *_at_model("/ready", {"GET": ready}),
        *_at_model("/stats", {"GET": statistics}),
    ]


def _repository_routes(v2: V2) -> list[BaseRoute]:
    source = v2.site.repository

    async def index(http: Request) -> Response:
        body = await _object(http)
        only_ready = body.get("ready")
        if not isinstance(only_ready, bool | None):
            raise InvalidInputs(f"ready is {show(only_ready)}, expected true or false")
        only_ready = bool(only_ready)
        return to_json(await repository.index(source, v2.models, only_ready=only_ready))

    async def load_one(http: Request) -> Response:
        body = await _object(http)
        name, parameters = http.path_params["name"], body.get("parameters") or {}
        await repository.load(source, v2.models, name, parameters)
        return Response()

    async def unload_one(http: Request) -> Response:
        await repository.unload(source, http.path_params["name"])
        return Response()

    return [
        route(f"/v2/repository{place}{path}", {"POST": answer})
        for place in ("", "/{repository}")
        for path, answer in (
            ("/index", index),
            ("/models/{name}/load", load_one),
            ("/models/{name}/unload", unload_one),
        )
    ]


def _memory_routes(v2: V2) -> list[BaseRoute]:
    memory = v2.memory

    async def status(http: Request) -> Response:
        return to_json(memory.status(http.path_params.get("region", "")))

    async def register(http: Request) -> Response:
        body = await _object(http)
        key, numbers = body.get("key"), [body.get("offset", 0), body.get("byte_size")]
        if not isinstance(key, str) or any(type(one) is not int for one in numbers):
            raise InvalidInputs("expected key, a text, and byte_size and offset, numbers of bytes")
        memory.register(http.path_params["region"], key, *numbers)
        return Response()

    async def unregister(http: Request) -> Response:
        memory.unregister(http.path_params.get("region", ""))
        return Response()

    async def no_regions(_: Request) -> Response:
        return to_json([])

    async def nothing(_: Request) -> Response:
        return Response()

    base, gpu = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    return [
        route(f"{gpu}/status", {"GET": no_regions}),
        route(f"{gpu}/unregister", {"POST": nothing}),
        route(f"{base}/status", {"GET": status}),
        route(f"{base}/region/{{region}}/status", {"GET": status}),
        route(f"{base}/region/{{region}}/register", {"POST": register}),
        route(f"{base}/region/{{region}}/unregister", {"POST": unregister}),
        route(f"{base}/unregister", {"POST": unregister}),
    ]


def model_of(http: Request) -> Model:
    """The model that a path names.  Raises InvalidInputs."""
    return http.path_params["name"], to_version(http.path_params.get("version", ""))


def _at_model(path: str, answers: dict[str, Answer]) -> list[BaseRoute]:
    """The path below a model, with and without a version."""
    return [
        route(f"/v2/models/{{name}}{version}{path}", answers)
        for version in ("", "/versions/{version}")
    ]


def route(path: str, answers: dict[str, Answer]) -> Route:
    """A route with an answer for each of some verbs."""

    async def answer(http: Request) -> Response:
        return await answers["GET" if http.method == "HEAD" else http.method](http)

    return _ENDPOINTS.route(path, [*answers], answer)


async def _object(http: Request) -> dict[str, Any]:
    """The body, a JSON object; nothing at all is an empty one.  Raises InvalidInputs."""
    body = await read_body(http, _MAX_SMALL)
    try:
        found = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("parameters", {}), dict | None):
        raise InvalidInputs("the body is no JSON object, or its parameters are none")
    return found
