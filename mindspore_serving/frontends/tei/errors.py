"""Errors in TEI's form: status, text and type."""

from starlette.responses import Response

from mindspore_serving.core.llm_messages import RequestRefused
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.tgi.answers import TgiErrorBody
from mindspore_serving.frontends.tgi.errors import UnreadableBody


class UnsupportedModel(InvalidInputs):
    """Error of a model that is of another kind than the route, or of no model."""


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    if isinstance(error, UnreadableBody):
        return error.to_response()
    failure = to_failure(error)
    status, kind = _kind(error, failure.status)
    return to_json(TgiErrorBody(failure.text, kind), status, failure.retry_after)


def _kind(error: Exception, status: int) -> tuple[int, str]:
    """Return the status and the type of the error."""
    if status in (401, 403, 405, 415):
        return status, "Validation"
    if isinstance(error, Overloaded) or status == 429:
        return 429, "Overloaded"
    if isinstance(error, UnsupportedModel):
        return 424, "Backend"
    if isinstance(error, RequestRefused) and error.refused.reason == "empty":
        return 400, "Empty"
    if isinstance(error, RequestRefused | InvalidField | InvalidInputs):
        return 413, "Validation"
    if status == 503:
        return 503, "Unhealthy"
    return (status if status in (404, 413, 502, 504) else 424), "Backend"
