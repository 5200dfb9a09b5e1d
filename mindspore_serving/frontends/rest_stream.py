"""Streams of the classic RESTful protocol: POST /model/NAME[/version/N]:METHOD_stream.

Each event has the body of an ordinary answer with one instance.
"""

from collections.abc import AsyncIterator

from starlette.responses import Response

from mindspore_serving.core.service import Control, Inference, Reply, Request
from mindspore_serving.frontends import rest_ms, sse
from mindspore_serving.frontends.waiting import Replies

SUFFIX = "_stream"
OLD_SPELLING = "generated_stream"


def method_of(control: Control, request: Request) -> str | None:
    """The method whose stream `request` asks for by its name; None if it asks for no stream."""
    name = request.method
    if control.streams(request.servable, request.version, name) is not None:
        return None  # a method of that very name
    base = "generate" if name == OLD_SPELLING else name.removesuffix(SUFFIX)
    streams = control.streams(request.servable, request.version, base)
    return base if base != name and streams else None


async def answer(inference: Inference, request: Request) -> Response | tuple[int, bytes]:
    """The stream; or status and body of an ordinary answer if it fails before it has begun."""
    request.is_stream = True
    replies = Replies(inference, request)
    try:
        first = await replies.next()
    except BaseException:
        replies.cancel()
        raise
    if first is not None and first.failure is not None:
        return rest_ms.to_error(first.failure)
    return sse.EventStream(_events(replies, first))


async def _events(replies: Replies, reply: Reply | None) -> AsyncIterator[bytes]:
    with replies:
        while reply is not None:
            if reply.failure is not None:
                yield sse.event(rest_ms.to_error(reply.failure)[1])
            for instance in reply.instances:
                yield sse.event(rest_ms.to_body(Reply([instance]))[1])
            reply = await replies.next()
