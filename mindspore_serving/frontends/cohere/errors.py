"""Errors as Cohere's clients read them: an object with a message, and the status that names the
exception."""

import msgspec
from starlette.responses import Response

from mindspore_serving.frontends.openai.errors import to_failure


def to_response(error: Exception) -> Response:
    """The answer to a request that ended with `error`, which is being handled."""
    failure = to_failure(error)
    headers = {"retry-after": failure.retry_after} if failure.retry_after else None
    body = msgspec.json.encode({"message": failure.text})
    return Response(body, failure.status, headers, "application/json")
