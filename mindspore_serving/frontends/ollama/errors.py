"""Errors in Ollama's form: a text and the status."""

import msgspec
from starlette.responses import Response

from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.ollama.answers import OllamaError


def to_line(error: Exception) -> bytes:
    """Return the line that ends a stream with `error`, which is being handled."""
    return msgspec.json.encode(OllamaError(to_failure(error).text)) + b"\n"


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    failure = to_failure(error)
    return to_json(OllamaError(failure.text), failure.status, failure.retry_after)
