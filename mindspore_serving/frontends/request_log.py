"""Log of the content of requests, for debugging."""

from collections.abc import Callable
from typing import Any

import msgspec

from mindspore_serving import log
from mindspore_serving.core.llm_messages import CODEC, decode_request
from mindspore_serving.core.service import Call, Inference, Reply, Request

MAX_SHOWN = 2000  # characters of a request


class RequestLog:
    """An `Inference` that logs requests, also those to be refused, and passes them to `inner`."""

    is_refusing = False

    def __init__(self, inner: Inference) -> None:
        self._inner = inner

    def refusal(self, *request: object) -> None:
        return None

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> Call:
        fields = {"servable": request.servable, "method": request.method, "body": _show(request)}
        with log.of_request(request.id):
            log.event("request", fields)
        return self._inner.submit(request, on_reply)


def _show(request: Request) -> str:
    body: Any = request.body
    if request.codec == CODEC:
        body = msgspec.json.encode(decode_request(request.method, body))
    if isinstance(body, (bytes, bytearray, memoryview)):
        text = bytes(body[: 4 * MAX_SHOWN]).decode(errors="backslashreplace")
    else:
        text = repr(body)
    return (
        text
        if len(text) <= MAX_SHOWN
        else f"{text[:MAX_SHOWN]}... ({len(text)} characters or more)"
    )
