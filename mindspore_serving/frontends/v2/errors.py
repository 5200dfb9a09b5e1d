"""Errors of protocol v2: {"error": "..."} with a status."""

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.errors import ServingError, printable
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.v2.answers import V2Error
from mindspore_serving.wire import status

_FAILED = "the server failed to answer; its log says why"


def to_response(error: Exception) -> Response:
    """Return the answer for `error`, within its except block.

    The text of an error that is not a ServingError is only logged.
    """
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        return to_json(V2Error(_FAILED), 500)
    seconds = status.retry_after(error)
    return to_json(_to_struct(error), status.of(error.code).http, seconds)


def to_body(error: Exception) -> bytes:
    """Return the JSON for `error`, within its except block."""
    return msgspec.json.encode(_to_struct(to_serving_error(error)))


def _to_struct(error: ServingError) -> V2Error:
    return V2Error(printable(str(error)))


def to_serving_error(error: Exception) -> ServingError:
    """Return the ServingError to answer with, within the except block of `error`."""
    if isinstance(error, ServingError):
        return error
    log.error("a request failed", exc_info=True)
    return ServingError(_FAILED)
