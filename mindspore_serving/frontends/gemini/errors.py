"""Errors in Gemini's form: a status, its name and a text."""

import msgspec
from starlette.responses import Response

from mindspore_serving.frontends.chat.errors import ChatFailure, to_failure
from mindspore_serving.frontends.gemini.answers import GeminiError, GeminiProblem
from mindspore_serving.frontends.json_answer import to_json

_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_KEY = " or as x-goog-api-key: KEY; a key in the URL is not read, as logs would show it"


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    failure = to_failure(error)
    return to_json(_to_body(failure), failure.status, failure.retry_after)


def to_event(error: Exception) -> bytes:
    """Return the bytes that end a stream of events with `error`, which is being handled.

    They are JSON without "data:", as from Google's servers: Google's library for JavaScript reads
    errors from nothing else.
    """
    return to_element(error) + b"\n\n"


def to_element(error: Exception) -> bytes:
    """Return `error`, which is being handled, as JSON."""
    return msgspec.json.encode(_to_body(to_failure(error)))


def _to_body(failure: ChatFailure) -> GeminiError:
    name = _NAMES.get(failure.status, "INVALID_ARGUMENT" if failure.status < 500 else "INTERNAL")
    text = failure.text + _KEY if failure.status == 401 else failure.text
    return GeminiError(GeminiProblem(failure.status, text, name))
