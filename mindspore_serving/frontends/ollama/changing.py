"""POST /api/pull, /api/create and /api/copy, DELETE /api/delete: models that clients make."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.client_models import ClientModelStore, NewModel, PullProgress
from mindspore_serving.errors import Forbidden, InvalidField, InvalidInputs, NotFound
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.ollama.answers import Pulled
from mindspore_serving.frontends.ollama.errors import to_line
from mindspore_serving.frontends.ollama.models import without_tag
from mindspore_serving.frontends.ollama.requests import (
    CopyRequest,
    CreateRequest,
    ModelRequest,
    PullRequest,
)
from mindspore_serving.frontends.ollama.writing import LINES
from mindspore_serving.frontends.sse import EventStream

_SERVED = ("pulling manifest", "success")
_CHOSEN = "the operator chooses the models, unless --allow-pulling lets clients"
_REFUSED = {  # field of /api/create -> what to do instead
    "template": "is not supported: the chat template of the model's files is used",
    "files": "is not supported: clients send no files; name a model in from",
    "adapters": "is not supported: the operator serves adapters, as models of their own",
    "messages": "is not supported: send the messages with each request",
    "quantize": "is not supported: name a quantised model in from, as hf.co/ORG/NAME:Q4_K_M",
}


async def pull(state: AppState, http: Request, body: PullRequest) -> Response:
    """Download a model and serve it; a model of the operator is there already.

    Raises Forbidden if the operator has not allowed it.
    """
    name = _name_of(body)
    if body.insecure:
        raise InvalidField("insecure", "is true, expected false: certificates are checked")
    control = state.client_models
    try:
        if control is None or control.find(name) is None:
            state.models.find(without_tag(name), is_exact=True)
            return _of_served(is_stream=body.stream is not False)
    except NotFound as error:
        if control is None or not control.is_allowed:
            raise Forbidden(f"{error}. Clients cannot pull models: {_CHOSEN}") from None
    assert control is not None
    return await _answer(http, control.pull(name), is_stream=body.stream is not False)


def _of_served(*, is_stream: bool) -> Response:
    if not is_stream:
        return to_json(Pulled("success"))
    return Response(b"".join([_line(PullProgress(status)) for status in _SERVED]), media_type=LINES)


async def create(state: AppState, http: Request, body: CreateRequest) -> Response:
    """Make a model of another one, with default parameters and a system message."""
    control = _allowed(state, http)
    for field, problem in _REFUSED.items():
        if getattr(body, field):
            raise InvalidField(field, problem)
    model = NewModel(
        name=_name_of(body),
        source=body.from_ or "",
        parameters=body.parameters or {},
        system=body.system or "",
        modelfile=body.modelfile or "",
    )
    return await _answer(http, control.create(model), is_stream=body.stream is not False)


async def copy(state: AppState, http: Request, body: CopyRequest) -> Response:
    """Give a model one more name."""
    await _allowed(state, http).copy(body.source, body.destination)
    return Response()


async def delete(state: AppState, http: Request, body: ModelRequest) -> Response:
    """Delete a model that clients have made."""
    await _allowed(state, http).delete(_name_of(body))
    return Response()


def _allowed(state: AppState, http: Request) -> ClientModelStore:
    """Return the control of changes.  Raises Forbidden if the operator has not allowed them."""
    control = state.client_models
    if control is None or not control.is_allowed:
        raise Forbidden(f"{http.url.path} is not allowed, as {_CHOSEN}")
    return control


def _name_of(body: ModelRequest) -> str:
    """Return the model's name.  Raises InvalidInputs without one."""
    name = body.model or body.name
    if not name:
        raise InvalidInputs("model is missing: the name of the model")
    return name


async def _answer(
    http: Request, steps: AsyncIterator[PullProgress], *, is_stream: bool
) -> Response:
    """Answer with a line for each step, or with the last alone.

    An error of the first step is that of the request; later ones are the last line.
    """
    first = await anext(steps)
    if is_stream:
        return EventStream(_lines(first, steps), media_type=LINES, ping=b" ")
    await while_connected(http, _exhaust(steps))
    return to_json(Pulled("success"))


async def _exhaust(steps: AsyncIterator[PullProgress]) -> None:
    try:
        async for _ in steps:
            pass
    finally:
        await _close(steps)


async def _lines(first: PullProgress, steps: AsyncIterator[PullProgress]) -> AsyncIterator[bytes]:
    try:
        yield _line(first)
        async for step in steps:
            yield _line(step)
        yield _line(PullProgress("success"))
    except Exception as error:
        yield to_line(error)
    finally:
        await _close(steps)


async def _close(steps: Any) -> None:
    await steps.aclose()


def _line(step: PullProgress) -> bytes:
    has_size = bool(step.digest)
    pulled = Pulled(
        step.status,
        digest=step.digest or UNSET,
        total=step.total if has_size else UNSET,
        completed=step.completed if has_size else UNSET,
    )
    return msgspec.json.encode(pulled) + b"\n"
