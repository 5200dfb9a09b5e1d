"""Errors as Cohere's clients read them: an object with a message, and the status that names the
exception."""

from starlette.responses import Response

from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.errors import to_failure


def to_response(error: Exception) -> Response:
    """The answer to a request that ended with `error`, which is being handled."""
    failure = to_failure(error)
    return to_json({"message": failure.text}, failure.status, failure.retry_after)
