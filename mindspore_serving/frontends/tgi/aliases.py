"""Paths that several protocols have: the body decides which of them answers."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mindspore_serving.frontends.tgi.generating import TgiGenerating
from mindspore_serving.frontends.tgi.requests import decode, read_json

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_DECLINED = "mindspore_serving.declined"


class _Shape(msgspec.Struct):
    """The fields by which the protocols differ."""

    inputs: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


_SHAPE = msgspec.json.Decoder(_Shape)


def other_path(body: bytes, chat: str, completions: str) -> str | None:
    """The path of the protocol that `body` is of, None if it is of this one or of none.  Raises
    WrongBody if it is no JSON object.
    """
    shape = decode(body, _SHAPE)
    if shape.inputs:
        return None
    if shape.messages:
        return chat
    return completions if shape.prompt else None


async def invocations(served: TgiGenerating, request: Request) -> Response:
    """POST /invocations, SageMaker's one route."""
    body = await read_json(request, served.state)
    path = other_path(body, CHAT, COMPLETIONS)
    if path:
        return Forwarded(body, path)
    return await served.answer_compat(request, body)


def is_not_declined(scope: Scope) -> bool:
    """Whether a request does not come again because its path was declined: then a later route is
    meant.
    """
    return bool(scope.get(_DECLINED) != scope["path"])


class Forwarded(Response):
    """What the same application answers to the same body at `path`, which may be the same one:
    then by a later route.
    """

    def __init__(self, body: bytes, path: str) -> None:
        super().__init__()
        self._path = path
        self._sent = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = False

        async def receive_again() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": self._sent, "more_body": False}

        there = {
            **scope,
            "path": self._path,
            "raw_path": self._path.encode(),
            _DECLINED: scope["path"],
        }
        await scope["app"](there, receive_again, send)
