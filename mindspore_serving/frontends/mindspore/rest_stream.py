"""Streams of the classic RESTful protocol: POST /model/NAME[/version/N]:METHOD_stream.

Each event has the body of an ordinary answer with one instance.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mindspore_serving.core.service import Control, Inference, Reply, Request
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.mindspore import rest as ms_rest
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.replies import Replies

SUFFIX = "_stream"
OLD_SPELLING = "generated_stream"


def method_of(control: Control, request: Request) -> str | None:
    """Return the method to stream if the name of the requested method means a stream, else None."""
    name = request.method
    if control.streams(request.servable, request.version, name) is not None:
        return None  # a method with that name exists
    base = "generate" if name == OLD_SPELLING else name.removesuffix(SUFFIX)
    streams = control.streams(request.servable, request.version, base)
    return base if base != name and streams else None


async def respond(
    http: HttpRequest, inference: Inference, request: Request, rest: MsRest
) -> Response:
    """Return a stream, or an ordinary answer if the request fails before the first reply.

    The body of `http` was read.  Raises ClientDisconnect if the client disconnects before that.
    """
    request.is_stream = True
    with ExitStack() as stack:
        replies = stack.enter_context(Replies(inference, request, rest.limits))
        first = await while_connected(http, replies.next())
        if first is not None and first.failure is not None:
            return to_response(rest.answer(first))
        return sse.EventStream(OwnedStream(_events(replies, first), stack.pop_all()))


def to_response(answer: ms_rest.Answer) -> Response:
    """Make a response of an answer."""
    code, body, seconds = answer
    headers = {"retry-after": seconds} if seconds else None
    return Response(body, code, headers, "application/json")


async def _events(replies: Replies, reply: Reply | None) -> AsyncIterator[bytes]:
    while reply is not None:
        if reply.failure is not None:
            yield sse.event(ms_rest.to_error(reply.failure)[1])
        for instance in reply.instances:
            yield sse.event(ms_rest.to_body(Reply([instance]))[1])
        reply = await replies.next()
