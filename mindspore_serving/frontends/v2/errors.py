"""Errors of protocol v2: {"error": "..."} with a status."""

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.wire import status

_FAILED = "the server failed to answer; its log says why"


def to_response(error: Exception) -> Response:
    """The answer to a request that ended with `error`, which is being handled.  One that is no
    ServingError is described in the log alone."""
    if not isinstance(error, ServingError):
        log.error("answering a request", exc_info=True)
        return fail(500, _FAILED)
    response = fail(status.of(error.code).http, str(error))
    seconds = status.retry_after(error)
    if seconds is not None:
        response.headers["retry-after"] = seconds
    return response


def fail(code: int, text: str) -> Response:
    return Response(to_body(text), code, media_type="application/json")


def to_body(text: str) -> bytes:
    return msgspec.json.encode({"error": text.encode("utf-8", "backslashreplace").decode()})


def to_serving_error(error: Exception) -> ServingError:
    """As `to_response`, for a transport that has its own way to say it."""
    if isinstance(error, ServingError):
        return error
    log.error("answering a request", exc_info=True)
    return ServingError(_FAILED)
