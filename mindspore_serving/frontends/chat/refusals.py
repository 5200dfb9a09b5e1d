"""Requests to language models that are refused before they are read, in the form of their protocol.

Which model a request is for is in its body; so that is done only when none has room.
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

_MARK = f"id-{secrets.token_hex(16)}"  # in place of the id of a request
_MOST_KEPT = 256
Answer = tuple[int, Fields, bytes]


PATHS = {row.path.encode(): row for row in ROUTES if row.refused_early}


class LanguageRefusals:
    """Opens the exchanges of one server; `limits` say how long any may take.  `others`
    opens those of other requests.
    """

    def __init__(
        self,
        control: Control,
        limits: ServerLimits,
        others: Callable[[FastPath, RequestHead, ExchangeOutput], Exchange | None] = lambda *_: (
            None
        ),
    ) -> None:
        self._control = control
        self._longest = limits.request_timeout
        self._others = others
        self._answers: dict[tuple[bytes, str, float | None], Answer] = {}

    def __call__(
        self, path: FastPath, head: RequestHead, output: ExchangeOutput
    ) -> Exchange | None:
        if not path.inference.is_refusing or head.target not in PATHS:
            return self._others(path, head, output)
        if not self._may_ask(path, head):
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

    def _may_ask(self, path: FastPath, head: RequestHead) -> bool:
        fields = head.fields
        if path.origins is not None and not path.origins.is_plain_json(fields):
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
            if not (card.can_generate if method == GENERATING else card.can_embed):
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
                response = PATHS[target].protocol.to_response(error)
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
