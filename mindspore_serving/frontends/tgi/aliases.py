"""Paths that several protocols share: the body decides which protocol answers."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mindspore_serving.frontends.tgi.generating import TgiService
from mindspore_serving.frontends.tgi.requests import decode, read_json

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_DECLINED = "mindspore_serving.declined"


class _Shape(msgspec.Struct):
    """Fields by which the protocols differ."""

    inputs: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


_SHAPE = msgspec.json.Decoder(_Shape)


def other_path(body: bytes, chat: str, completions: str) -> str | None:
    """Return the path of the other protocol that `body` belongs to, None if there is none.

    Raises WrongBody if the body is no JSON object.
    """
    shape = decode(body, _SHAPE)
    if shape.inputs:
        return None
    if shape.messages:
        return chat
    return completions if shape.prompt else None


async def invocations(served: TgiService, request: Request) -> Response:
    """Answer POST /invocations, the single route of SageMaker."""
    body = await read_json(request, served.state)
    path = other_path(body, CHAT, COMPLETIONS)
    if path:
        return Forwarded(body, path)
    return await served.answer_compat(request, body)


def is_not_declined(scope: Scope) -> bool:
    """Return whether this route is to answer: it has not declined the request before.

    A declined request is forwarded to its own path, where a later route is meant.
    """
    return bool(scope.get(_DECLINED) != scope["path"])


class Forwarded(Response):
    """Answer of the same application to the same body at `path`.

    If it is the same path, a later route answers.
    """

    def __init__(self, body: bytes, path: str) -> None:
        super().__init__()
        self._path = path
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = False

        async def receive_body() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}

        forwarded = {
            **scope,
            "path": self._path,
            "raw_path": self._path.encode(),
            _DECLINED: scope["path"],
        }
        await scope["app"](forwarded, receive_body, send)
