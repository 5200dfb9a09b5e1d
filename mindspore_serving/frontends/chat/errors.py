"""Errors in OpenAI's form: an object with four keys, and the HTTP status of the exception.

Knows every `ServingError`, and no request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.errors import Code, InvalidField, ServingError
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.fields import Fields
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.wire import status

_SERVER = ("server_error", None)
_OVERLOADED = ("requests", "rate_limit_exceeded")
_REQUEST = "invalid_request_error"
_KINDS: dict[int, tuple[str, str | None]] = {
    Code.INVALID_INPUTS: (_REQUEST, None),
    Code.NOT_FOUND: (_REQUEST, "model_not_found"),
    Code.TOO_LARGE: (_REQUEST, "request_too_large"),
    Code.OVERLOADED: _OVERLOADED,
    Code.UNAUTHORIZED: (_REQUEST, "invalid_api_key"),
    Code.FORBIDDEN: (_REQUEST, None),
    Code.NO_ROUTE: (_REQUEST, None),
    Code.WRONG_VERB: (_REQUEST, None),
    Code.WRONG_TYPE: (_REQUEST, None),
    Code.CONFLICT: (_REQUEST, "conversation_locked"),
}
_PROMPT = ("context", "template", "empty")  # reasons that concern the prompt


class Problem(msgspec.Struct):
    """Error of a request: text, type, field and code."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """Body of an error."""

    error: Problem


class RefusedField(InvalidField):
    """A field that the model refused; `reason` becomes the error's `code`, if there is one."""

    def __init__(self, field: str, text: str, reason: str | None) -> None:
        super().__init__(field, text=text)
        self.reason = reason

    def renamed(self, field: str) -> "RefusedField":
        return RefusedField(field, str(super().renamed(field)), self.reason)


@dataclass(frozen=True, slots=True)
class ChatFailure:
    """An error as an answer.

    `kind` and `reason` are the body's `type` and `code`; `retry_after` is in seconds.
    """

    status: int
    text: str
    kind: str
    param: str | None = None
    reason: str | None = None
    retry_after: str | None = None

    def to_object(self) -> Error:
        return Error(Problem(self.text, self.kind, self.param, self.reason))

    def to_body(self) -> bytes:
        return msgspec.json.encode(self.to_object())

    def to_event(self) -> bytes:
        """Return the event that ends a stream."""
        return sse.event(self.to_body())

    def to_response(self) -> Response:
        return to_json(self.to_object(), self.status, self.retry_after)


def to_failure(error: Exception) -> ChatFailure:
    """Return the answer to a request that ended with `error`.

    Called while `error` is handled: anything but a ServingError is described in the log alone.
    """
    if isinstance(error, RequestRefused):
        return _of_refused(error.refused)
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        return ChatFailure(500, "The server failed; its log says why.", _SERVER[0])
    kind, reason = _KINDS.get(error.code, _SERVER)
    param = "model" if reason == "model_not_found" else None
    if isinstance(error, InvalidField):
        param, reason = error.field or None, getattr(error, "reason", None)
    retry_after = status.retry_after(error)
    return ChatFailure(status.of(error.code).http, str(error), kind, param, reason, retry_after)


def to_response(error: Exception) -> Response:
    """Return the answer to a request that ended with `error`, which is being handled."""
    return to_failure(error).to_response()


def to_event(error: Exception) -> bytes:
    """Return the event that ends a stream with `error`, which is being handled."""
    return to_failure(error).to_event()


def _of_refused(refused: Refused) -> ChatFailure:
    if refused.reason == "overloaded":
        retry_after = status.seconds_of(refused.retry_after)
        return ChatFailure(429, refused.text, _OVERLOADED[0], None, _OVERLOADED[1], retry_after)
    if refused.reason == "context":
        text = f"{refused.text}: the maximum context length is {refused.max_model_len} tokens"
        return ChatFailure(400, text, _REQUEST, None, "context_length_exceeded")
    return ChatFailure(400, refused.text, _REQUEST, refused.field or None)


@contextmanager
def renaming_fields(prompt: str, fields: Fields, body: msgspec.Struct) -> Iterator[None]:
    """Raise what the model refuses under the field names of `body`.

    `prompt` is the name of the field that holds the prompt.
    """
    try:
        yield
    except RequestRefused as error:
        refused, failure = error.refused, _of_refused(error.refused)
        if refused.reason == "overloaded":
            raise
        if refused.reason in _PROMPT:
            raise RefusedField(prompt, failure.text, failure.reason) from None
        renamed = RefusedField(refused.field, failure.text, failure.reason)
        name = "grammar" if refused.reason == "grammar" else refused.field
        raise (renamed.renamed(fields.name_of(name, body)) if name else renamed) from None
