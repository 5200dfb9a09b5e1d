"""Errors as clients of llm-serving read them: a detail and the status."""

from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.llm_messages import RequestRefused
from mindspore_serving.errors import (
    InvalidField,
    InvalidInputs,
    NotFound,
    Overloaded,
    ServingError,
    TooLarge,
)
from mindspore_serving.frontends.llm_serving.requests import WrongRequest, to_detail
from mindspore_serving.wire import status


def to_response(error: Exception) -> Response:
    """The answer to a request that failed with `error` before anything was sent."""
    if isinstance(error, WrongRequest):
        return error.to_response()
    if not isinstance(error, ServingError):
        log.error("answering a request", exc_info=True)
        return to_detail(500, "the server failed; its log says why")
    if isinstance(error, RequestRefused) and error.refused.reason == "overloaded":
        error = Overloaded(str(error), error.refused.retry_after)
    if isinstance(error, InvalidField):
        return WrongRequest(str(error), ("parameters", error.field)).to_response()
    if isinstance(error, InvalidInputs) and not isinstance(error, NotFound | TooLarge):
        return WrongRequest(str(error)).to_response()
    return to_detail(status.of(error.code).http, str(error), status.retry_after(error))
