"""Errors in TGI's form: status, text and type.

Knows every `ServingError`, and no request.
"""

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.errors import (
    DeadlineExceeded,
    Forbidden,
    InvalidInputs,
    NoRoute,
    NotFound,
    Overloaded,
    ServableUnavailable,
    ServingError,
    Unauthorized,
    UpstreamFailed,
    WrongType,
    WrongVerb,
)
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.tgi.answers import TgiErrorBody
from mindspore_serving.wire import status


class TgiError(ServingError):
    """An error as an answer.

    `status` is HTTP's, `kind` the body's `error_type`, `retry_after` is in seconds.
    """

    def __init__(self, status: int, kind: str, text: str, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after

    def to_object(self) -> TgiErrorBody:
        return TgiErrorBody(str(self), self.kind)

    def to_event(self) -> bytes:
        """Return the event that ends a stream."""
        return sse.event(msgspec.json.encode(self.to_object()))

    def to_response(self) -> Response:
        return to_json(self.to_object(), self.status, self.retry_after)


class UnreadableBody(ServingError):
    """A body that the route cannot read, answered in plain text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    def to_response(self) -> Response:
        return Response(str(self), self.status, media_type="text/plain")


def invalid(text: str) -> TgiError:
    """Return the error of an invalid parameter."""
    return TgiError(422, "validation", f"Input validation error: {text}")


def failed(text: str) -> TgiError:
    """Return the error of a generation that failed."""
    return TgiError(424, "generation", f"Request failed during generation: {text}")


def overloaded(retry_after: str | None = "1") -> TgiError:
    """Return the error of a server without capacity."""
    return TgiError(429, "overloaded", "Model is overloaded", retry_after)


def incomplete(*, is_stream: bool) -> TgiError:
    """Return the error of an answer that ended early."""
    if is_stream:
        return TgiError(500, "incomplete_generation_stream", "Incomplete generation stream")
    return TgiError(500, "incomplete_generation", "Incomplete generation")


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    return (error if isinstance(error, UnreadableBody) else to_tgi_error(error)).to_response()


def to_refusal(error: ServingError) -> Response:
    """Return the answer to a request that no route accepted."""
    if isinstance(error, Unauthorized):
        return Response(b"", 401, media_type="application/json")
    if isinstance(error, WrongVerb):
        return Response(b"", 405)
    return to_tgi_error(error).to_response()


def to_tgi_error(error: Exception) -> TgiError:
    """Return the answer to a request that ended with `error`.

    Anything but a ServingError is described in the log alone.
    """
    if isinstance(error, TgiError):
        return error
    if isinstance(error, RequestRefused):
        return _of_refused(error.refused)
    if isinstance(error, Overloaded):
        return overloaded(status.retry_after(error))
    if isinstance(error, NotFound | NoRoute):
        return TgiError(404, "not_found", str(error))
    if isinstance(error, InvalidInputs):
        return invalid(str(error))
    if isinstance(error, ServableUnavailable):
        return TgiError(503, "generation", str(error), status.retry_after(error))
    if isinstance(error, DeadlineExceeded | UpstreamFailed):
        text = f"Request failed during generation: {error}"
        return TgiError(status.of(error.code).http, "generation", text)
    if isinstance(error, Forbidden | WrongType):
        kind = "forbidden" if isinstance(error, Forbidden) else "validation"
        return TgiError(status.of(error.code).http, kind, str(error))
    if isinstance(error, ServingError):
        return failed(str(error))
    log.error("a request failed", exc_info=True)
    return failed("the server failed; its log says why")


def _of_refused(refused: Refused) -> TgiError:
    if refused.reason == "overloaded":
        return overloaded(status.seconds_of(refused.retry_after))
    if refused.reason == "template":
        return TgiError(422, "template_error", f"Template error: {refused.text}")
    if refused.reason == "context":
        return invalid(_too_long(refused))
    if refused.reason == "empty":
        return invalid("`inputs` cannot be empty")
    if refused.reason == "grammar":
        return invalid(f"grammar is not valid: {refused.text}")
    return invalid(refused.text)


def _too_long(refused: Refused) -> str:
    num_tokens, max_len = refused.num_prompt_tokens, refused.max_model_len
    return f"`inputs` must have less than {max_len - 1} tokens. Given: {num_tokens}"
