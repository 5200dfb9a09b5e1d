"""Handlers of HTTP routes: readiness, settings, the model repository and shared memory."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.chat.fields import show
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.operation import ModelReady
from mindspore_serving.frontends.v2 import repository, settings
from mindspore_serving.frontends.v2.answers import (
    LogSettings,
    RepositoryModel,
    ServerReady,
    TraceSettings,
)
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.wire.v2.request import to_version

_MAX_SETTINGS = 1 << 20  # bytes of a body with settings


async def show_ready(v2: V2, _: Request) -> Response:
    """Answer with the readiness of the server."""
    is_ready = v2.state.control.is_ready
    return to_json(ServerReady(is_ready), 200 if is_ready else 503)


async def change_log(v2: V2, http: Request) -> LogSettings:
    """Change settings of the log."""
    changes = await read_object(http)
    settings.check_log_changes(v2.state.repository, changes)
    return settings.change_log_settings(changes)


async def change_trace(v2: V2, http: Request) -> TraceSettings:
    """Change settings of traces."""
    changes, model = await read_object(http), http.path_params.get("name", "")
    return settings.change_trace_settings(changes, v2.traces, v2.state.repository, model)


async def show_model_ready(v2: V2, http: Request) -> Response:
    """Answer with the readiness of a model."""
    name, version = model_of(http)
    is_ready = v2.models.is_ready(name, version)
    return to_json(ModelReady(name, is_ready), 200 if is_ready else 503)


async def index(v2: V2, http: Request) -> list[RepositoryModel]:
    """List the models of the repository."""
    body = await read_object(http)
    only_ready = body.get("ready")
    if not isinstance(only_ready, bool | None):
        raise InvalidInputs(f"ready is {show(only_ready)}, expected true or false")
    only_ready = bool(only_ready)
    return await repository.index(v2.state.repository, v2.models, only_ready=only_ready)


async def load(v2: V2, http: Request) -> None:
    """Load or reload a model."""
    body = await read_object(http)
    name, parameters = http.path_params["name"], body.get("parameters") or {}
    await repository.load(v2.state.repository, v2.models, name, parameters)


async def register(v2: V2, http: Request) -> None:
    """Register a region of shared memory."""
    body = await read_object(http)
    key, numbers = body.get("key"), [body.get("offset", 0), body.get("byte_size")]
    if not isinstance(key, str) or any(type(number) is not int for number in numbers):
        raise InvalidInputs(
            "expected key, a text, and byte_size and offset, which are numbers of bytes"
        )
    v2.memory.register(http.path_params["region"], key, *numbers)


def model_of(http: Request) -> tuple[str, int]:
    """Return the name and the version of the model in a path; 0 is the newest version.

    Raises InvalidInputs.
    """
    return http.path_params["name"], to_version(http.path_params.get("version", ""))


async def read_object(http: Request) -> dict[str, Any]:
    """Read the body, a JSON object; an empty body is an empty object.  Raises InvalidInputs."""
    body = await read_body(http, _MAX_SETTINGS)
    try:
        decoded = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None
    if not isinstance(decoded, dict) or not isinstance(decoded.get("parameters", {}), dict | None):
        raise InvalidInputs("expected a JSON object, whose parameters are an object too")
    return decoded
