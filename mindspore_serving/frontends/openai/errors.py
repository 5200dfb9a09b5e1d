"""Errors as OpenAI's clients read them: an object of four keys, and the status that names the
exception.  Knows every `ServingError`, and no request.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.errors import Code, InvalidInputs, ServingError
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.language import RefusedError
from mindspore_serving.wire import status

_SERVER = ("server_error", None)
_CROWDED = ("requests", "rate_limit_exceeded")
_REQUEST = "invalid_request_error"
_KINDS: dict[int, tuple[str, str | None]] = {
    Code.INVALID_INPUTS: (_REQUEST, None),
    Code.NOT_FOUND: (_REQUEST, "model_not_found"),
    Code.TOO_LARGE: (_REQUEST, "request_too_large"),
    Code.OVERLOADED: _CROWDED,
}
_FIRST_WORD = re.compile(r"[a-z_]+")


class WrongField(InvalidInputs):
    """A field of the request that is wrong: `param`, or None if it is the body as a whole.
    `reason` is the word clients look for, if there is one."""

    def __init__(self, param: str | None, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.param = param
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told of an error.  `kind` and `reason` are the body's `type` and `code`."""

    status: int
    text: str
    kind: str
    param: str | None = None
    reason: str | None = None

    def to_object(self) -> dict[str, Any]:
        return {
            "message": self.text,
            "type": self.kind,
            "param": self.param,
            "code": self.reason,
        }

    def to_body(self) -> bytes:
        return msgspec.json.encode({"error": self.to_object()})

    def to_event(self) -> bytes:
        """For a stream that has begun."""
        return sse.event(self.to_body())

    def to_response(self) -> Response:
        headers = {"retry-after": "1"} if self.status == 429 else None
        return Response(self.to_body(), self.status, headers, "application/json")


def to_failure(error: Exception) -> Failure:
    """What to tell of `error`, which is being handled.  Of one that is no ServingError the client
    is told nothing, and the log everything."""
    if isinstance(error, RefusedError):
        return _of_refused(error)
    if not isinstance(error, ServingError):
        log.error("answering a request", exc_info=True)
        return Failure(500, "The server failed to answer; its log says why.", _SERVER[0])
    kind, reason = _KINDS.get(error.code, _SERVER)
    param = "model" if reason == "model_not_found" else None
    if isinstance(error, WrongField):
        param, reason = error.param, error.reason
    elif isinstance(error, InvalidInputs) and param is None:
        param = named_param(str(error))
    return Failure(status.of(error.code).http, str(error), kind, param, reason)


def _of_refused(error: RefusedError) -> Failure:
    refused = error.refused
    if refused.reason == "overloaded":
        return Failure(429, refused.text, _CROWDED[0], None, _CROWDED[1])
    if refused.reason == "context":
        text = f"{refused.text}: the maximum context length is {refused.max_model_len} tokens"
        return Failure(400, text, _REQUEST, None, "context_length_exceeded")
    return Failure(400, refused.text, _REQUEST, named_param(refused.text))


def to_wrong_field(error: RefusedError, prompt: str, grammar: str) -> ServingError:
    """`error` with the field it is about: `prompt` is the request's name of what the model reads,
    `grammar` of what its answer must look like."""
    reason, failure = error.refused.reason, _of_refused(error)
    if reason == "overloaded":
        return error
    param = {"grammar": grammar, "input": failure.param}.get(reason, prompt)
    return WrongField(param, failure.text, failure.reason)


def named_param(text: str) -> str | None:
    """The sampling parameter that a text like "top_p is 3, expected ..." begins with."""
    first = _FIRST_WORD.match(text)
    name = first.group() if first else ""
    return name if name in SamplingParams.__slots__ else None
