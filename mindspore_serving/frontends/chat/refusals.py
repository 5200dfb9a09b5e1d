"""Requests to language models that are refused before they are read, in the form of their protocol.

Which model a request is for is in its body; so that is done only when none has room.
"""

import secrets
from collections.abc import Callable
from functools import partial

from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Control
from mindspore_serving.errors import ServingError, Temporary
from mindspore_serving.frontends.access import protocol_of
from mindspore_serving.frontends.anthropic.errors import to_failure as to_anthropic
from mindspore_serving.frontends.chat.errors import to_failure as to_openai
from mindspore_serving.frontends.http.exchange import Exchange, Output
from mindspore_serving.frontends.http.head import Head
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.refusing import Fields, TurnedAway
from mindspore_serving.frontends.mindspore.rest import to_timeout
from mindspore_serving.frontends.ollama.errors import to_response as to_ollama

GENERATE, EMBED = "@generate", "@embed"
_MARK = f"id-{secrets.token_hex(16)}"  # in place of the id of a request
_MOST_KEPT = 256
Answer = tuple[int, Fields, bytes]


def _openai(error: ServingError) -> Response:
    return to_openai(error).to_response()


def _anthropic(error: ServingError) -> Response:
    return to_anthropic(error).to_response()


PATHS: dict[bytes, tuple[str, Callable[[ServingError], Response]]] = {
    b"/v1/chat/completions": (GENERATE, _openai),
    b"/v1/completions": (GENERATE, _openai),
    b"/v1/responses": (GENERATE, _openai),
    b"/v1/embeddings": (EMBED, _openai),
    b"/v1/messages": (GENERATE, _anthropic),
    b"/api/chat": (GENERATE, to_ollama),
    b"/api/generate": (GENERATE, to_ollama),
    b"/api/embed": (EMBED, to_ollama),
}
"""The method that a path asks for, and how its protocol writes an error."""


class LanguageRefusals:
    """Opens the exchanges of one server; `limits` say how long any may take.  `others`
    opens those of other requests."""

    def __init__(
        self,
        control: Control,
        limits: ServerLimits,
        others: Callable[[FastPath, Head, Output], Exchange | None] = lambda *_: None,
    ) -> None:
        self._control = control
        self._longest = limits.request_timeout
        self._others = others
        self._answers: dict[tuple[bytes, str, float | None], Answer] = {}

    def __call__(self, path: FastPath, head: Head, output: Output) -> Exchange | None:
        if not path.inference.is_refusing or head.target not in PATHS:
            return self._others(path, head, output)
        if not self._may_ask(path, head):
            return None  # the application says why
        method, _ = PATHS[head.target]
        error = self._find_refusal(path, method, head.fields.get(b"x-request-timeout"))
        if error is None:
            return None
        answer = partial(_with_id, self._answer(head.target, error))
        exchange = TurnedAway(head, output, path.pace, answer)
        exchange.route = head.target.decode()
        exchange.protocol = protocol_of(exchange.route)
        return exchange

    def _may_ask(self, path: FastPath, head: Head) -> bool:
        fields = head.fields
        if path.sites is not None and not path.sites.is_plain(fields):
            return False
        if fields.get(b"content-type", b"").lstrip().lower().startswith(b"text/plain"):
            return False
        size = fields.get(b"content-length", b"0")
        if not size.isdigit() or int(size) > path.rest.max_body:
            return False
        if path.keys:
            try:
                path.keys.find(fields.get(b"authorization"), fields.get(b"x-api-key"))
            except ServingError:
                return False
        return True

    def _find_refusal(self, path: FastPath, method: str, timeout: bytes | None) -> Temporary | None:
        """Why no model would take it: what the one says that has room first."""
        try:
            seconds = min(self._longest, to_timeout(timeout) if timeout else self._longest)
        except ServingError:
            return None
        first: Temporary | None = None
        for servable, version, card in self._control.language_models():
            if not (card.can_generate if method == GENERATE else card.can_embed):
                continue
            error = path.inference.refusal(servable, version, method, seconds)
            if error is None:
                return None
            if first is None or (error.retry_after or 0) < (first.retry_after or 0):
                first = error
        return first

    def _answer(self, target: bytes, error: Temporary) -> Answer:
        """What is written, with a mark where the request's id belongs."""
        key = target, str(error), error.retry_after
        answer = self._answers.get(key)
        if answer is None:
            with log.of_request(_MARK):
                response = PATHS[target][1](error)
            fields = [pair for pair in response.raw_headers if pair[0] != b"content-length"]
            answer = response.status_code, fields, bytes(response.body)
            if len(self._answers) >= _MOST_KEPT:
                self._answers.clear()
            self._answers[key] = answer
        return answer


def _with_id(answer: Answer, request_id: bytes) -> Answer:
    status, fields, body = answer
    mark = _MARK.encode()
    if mark not in body:
        return answer
    fields = [(name, request_id if value == mark else value) for name, value in fields]
    return status, fields, body.replace(mark, request_id)
