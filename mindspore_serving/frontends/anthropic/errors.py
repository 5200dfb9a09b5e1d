"""Errors as Anthropic's clients read them: a type that goes with the status, and a text."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving import log
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.anthropic.answers import AnthropicError, AnthropicProblem
from mindspore_serving.frontends.chat import errors as openai

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
        other = "invalid_request_error" if self.status < 500 else "api_error"
        problem = AnthropicProblem(_TYPES.get(self.status, other), self.text)
        request_id = log.request_id.get() or None
        return msgspec.json.encode(AnthropicError(error=problem, request_id=request_id))

    def to_event(self) -> bytes:
        """For a stream that has begun."""
        return sse.event(self.to_body(), b"error")

    def to_response(self) -> Response:
        headers = {REQUEST_ID: log.request_id.get()}
        if self.retry_after:
            headers["retry-after"] = self.retry_after
        return Response(self.to_body(), self.status, headers, "application/json")


def to_failure(error: Exception) -> AnthropicFailure:
    """The answer to a request that ended with `error`, which is being handled.  A server that has
    too much to do is overloaded.
    """
    found = openai.to_failure(error)
    status = OVERLOADED if found.status == 429 else found.status
    too_long = found.reason == "context_length_exceeded"
    text = f"prompt is too long: {found.text}" if too_long else found.text
    return AnthropicFailure(status, text, found.retry_after)


def to_response(error: Exception) -> Response:
    return to_failure(error).to_response()


def to_event(error: Exception) -> bytes:
    """The end of a stream that has begun."""
    return to_failure(error).to_event()


def to_refusal(error: Exception) -> Response:
    """The answer to a request that is refused before any route, for what its key may do."""
    found = openai.to_failure(error)
    return AnthropicFailure(found.status, found.text, found.retry_after).to_response()


def asks_as_anthropic(scope: Scope) -> bool:
    """Whether a client of Anthropic's asks, on whatever path: all of its requests say so."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])
