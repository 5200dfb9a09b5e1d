"""Errors as Ollama's clients read them: a text and the status."""

import msgspec
from starlette.responses import Response

from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.errors import to_failure


def to_body(error: Exception) -> bytes:
    """What says that a request ended with `error`, which is being handled; also in a stream."""
    return msgspec.json.encode({"error": to_failure(error).text})


def to_response(error: Exception) -> Response:
    """The answer to a request that ended with `error`, which is being handled."""
    failure = to_failure(error)
    return to_json({"error": failure.text}, failure.status, failure.retry_after)
