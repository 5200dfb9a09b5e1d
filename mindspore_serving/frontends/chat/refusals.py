"""Early refusal of requests to language models: answered before the body is read.

The model's name is in the body, so a request is refused early only if every model is full.
"""

import secrets
from collections.abc import Callable
from functools import partial

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Control
from mindspore_serving.errors import ServingError, Temporary
from mindspore_serving.frontends.http.early_refusal import EarlyRefusal, Fields
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.mindspore.rest import to_timeout
from mindspore_serving.frontends.protocols import ROUTES
from mindspore_serving.frontends.routes import GENERATING

_MARK = f"id-{secrets.token_hex(16)}"  # stands for the id of a request in a cached answer
_MAX_CACHED = 256
Answer = tuple[int, Fields, bytes]
Open = Callable[[FastPath, RequestHead, ExchangeOutput], Exchange | None]


PATHS = {row.path.encode(): row for row in ROUTES if row.refused_early}


class LanguageRefusals:
    """Opens the exchanges of requests that are refused early; `others` opens all other exchanges.

    `limits` has the longest time a request may take.
    """

    def __init__(
        self,
        control: Control,
        limits: ServerLimits,
        open_other: Open = lambda *_: None,
    ) -> None:
        self._control = control
        self._max_timeout = limits.request_timeout
        self._open_other = open_other
        self._answers: dict[tuple[bytes, str, float | None], Answer] = {}

    def __call__(
        self, path: FastPath, head: RequestHead, output: ExchangeOutput
    ) -> Exchange | None:
        if not path.inference.is_refusing or head.target not in PATHS:
            return self._open_other(path, head, output)
        if not self._is_acceptable(path, head):
            return None  # the application says why
        row = PATHS[head.target]
        error = self._find_refusal(path, row.refused_early, head.fields.get(b"x-request-timeout"))
        if error is None:
            return None
        answer = partial(_with_id, self._answer(head.target, error))
        exchange = EarlyRefusal(head, output, path.pace, answer)
        exchange.route = head.target.decode()
        exchange.protocol = row.protocol.name
        return exchange

    def _is_acceptable(self, path: FastPath, head: RequestHead) -> bool:
        """Return whether the request's origin, size and key are valid."""
        fields = head.fields
        if path.origins is not None and not path.origins.is_plain_json(fields):
            return False
        size = fields.get(b"content-length", b"0")
        if not size.isdigit() or int(size) > path.rest.max_body:
            return False
        if path.keys:
            try:
                path.keys.find_in(fields)
            except ServingError:
                return False
        return True

    def _find_refusal(self, path: FastPath, method: str, timeout: bytes | None) -> Temporary | None:
        """Return why no model can take the request, None if one can.

        Of several errors, the one with the shortest time to retry.
        """
        try:
            seconds = min(self._max_timeout, to_timeout(timeout) if timeout else self._max_timeout)
        except ServingError:
            return None
        first: Temporary | None = None
        for servable, _, card in self._control.language_models():
            if not (card.can_generate if method == GENERATING else card.can_embed):
                continue
            error = path.inference.refusal(servable, 0, method, seconds)
            if error is None:
                return None
            if first is None or (error.retry_after or 0) < (first.retry_after or 0):
                first = error
        return first

    def _answer(self, target: bytes, error: Temporary) -> Answer:
        """Return the answer, with a mark in place of the request's id."""
        key = target, str(error), error.retry_after
        answer = self._answers.get(key)
        if answer is None:
            with log.of_request(_MARK):
                response = PATHS[target].protocol.to_response(error)
            fields = [pair for pair in response.raw_headers if pair[0] != b"content-length"]
            answer = response.status_code, fields, bytes(response.body)
            if len(self._answers) >= _MAX_CACHED:
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
