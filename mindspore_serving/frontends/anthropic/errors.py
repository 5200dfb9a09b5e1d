"""Errors in Anthropic's form: a text, and a type that belongs to the status."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.anthropic.answers import AnthropicError, AnthropicProblem
from mindspore_serving.frontends.chat import errors as openai
from mindspore_serving.frontends.tenants.limits import LimitReached

REQUEST_ID = "request-id"
OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class AnthropicFailure:
    """An error as an answer; `retry_after` is in seconds."""

    status: int
    text: str
    retry_after: str | None = None

    def to_body(self) -> bytes:
        default = "invalid_request_error" if self.status < 500 else "api_error"
        problem = AnthropicProblem(_TYPES.get(self.status, default), self.text)
        request_id = log.request_id.get() or None
        return msgspec.json.encode(AnthropicError(error=problem, request_id=request_id))

    def to_event(self) -> bytes:
        """Return the event that ends a stream."""
        return sse.event(self.to_body(), b"error")

    def to_response(self) -> Response:
        headers = {REQUEST_ID: log.request_id.get()}
        if self.retry_after:
            headers["retry-after"] = self.retry_after
        return Response(self.to_body(), self.status, headers, "application/json")


def to_failure(error: Exception) -> AnthropicFailure:
    """Return the answer to a request that ended with `error`, which is being handled.

    Too many requests are Anthropic's status 529, "overloaded", unless those of the key are.
    """
    failure = openai.to_failure(error)
    is_overloaded = failure.status == 429 and not isinstance(error, LimitReached)
    status = OVERLOADED if is_overloaded else failure.status
    too_long = failure.reason == "context_length_exceeded"
    text = f"prompt is too long: {failure.text}" if too_long else failure.text
    return AnthropicFailure(status, text, failure.retry_after)


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    return to_failure(error).to_response()


def to_event(error: Exception) -> bytes:
    """Return the event that ends a stream."""
    return to_failure(error).to_event()


def to_refusal(error: Exception) -> Response:
    """Return the answer to a request that is refused before any route, for its key."""
    failure = openai.to_failure(error)
    return AnthropicFailure(failure.status, failure.text, failure.retry_after).to_response()
