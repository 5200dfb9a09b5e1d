"""POST /v2/models/NAME[/versions/N]/infer of methods on the fast path, without ASGI.

Compressed bodies, megabytes of JSON and language models are left to the routes.
"""

import asyncio
import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import Overloaded, ServingError, TooLarge
from mindspore_serving.frontends import answer_headers
from mindspore_serving.frontends.bodies import too_large
from mindspore_serving.frontends.http.exchange import ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.predict import FastPath, Predict
from mindspore_serving.frontends.memory import NO_MEMORY
from mindspore_serving.frontends.mindspore.rest import Answer, to_timeout
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.v2.errors import to_body, to_serving_error
from mindspore_serving.frontends.v2.http_inference import (
    HEADER_LENGTH,
    LARGE_JSON,
    parse,
    to_answer,
)
from mindspore_serving.frontends.v2.inference import V2, Selected
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire import status
from mindspore_serving.wire.v2.outputs import MANY
from mindspore_serving.wire.v2.request import InferRequest

_TARGET = re.compile(rb"/v2/models/([^/?#]+)(?:/versions/([0-9]{1,10}))?/infer")
_LENGTH = HEADER_LENGTH.encode()
_COMPRESSED = (b"gzip", b"deflate")


class FastInfer:
    """Opens the exchanges of one server, which are of the class `kind`."""

    def __init__(
        self, v2: V2, kind: "Callable[[FastPath, RequestHead, ExchangeOutput], Infer] | None" = None
    ) -> None:
        self._v2 = v2
        self._kind = kind or Infer

    def __call__(self, path: FastPath, head: RequestHead, output: ExchangeOutput) -> "Infer | None":
        match = _TARGET.fullmatch(head.target)
        fields = head.fields
        if match is None or b"content-encoding" in fields:
            return None
        if fields.get(b"accept-encoding") in _COMPRESSED:
            return None
        if _LENGTH not in fields and int(fields.get(b"content-length", 0)) > LARGE_JSON:
            return None
        if path.origins is not None and not path.origins.is_plain_json(fields):
            return None
        try:
            name = unquote_to_bytes(match[1]).decode()
            model = self._v2.models.find(name, int(match[2] or 0))
        except (ServingError, UnicodeDecodeError):
            return None  # the routes report the error
        if model.language is not None:
            return None
        call = self._kind(path, head, output)
        call.begin(self._v2, model, head)
        return call


class Infer(Predict):
    """A call of infer."""

    protocol = "v2"
    declared_path = "/v2/models/{name}/infer"
    __slots__ = ("_is_in_use", "_length", "_model", "_parsed", "_task", "_v2")

    def __init__(self, path: FastPath, head: RequestHead, output: ExchangeOutput) -> None:
        super().__init__(path, head, output)
        self._is_in_use = False  # a thread reads its tensors

    def begin(self, v2: V2, model: V2Model, head: RequestHead) -> None:
        """Read the head; an error is answered after earlier requests."""
        self._v2 = v2
        self._model = model
        self._parsed: InferRequest | None = None
        length = head.fields.get(_LENGTH)
        self._length = None if length is None else length.decode("latin-1")
        try:
            if self._path.keys:
                self.tenant = self._path.keys.find(head.fields.get(b"authorization")).admit()
            timeout = head.fields.get(b"x-request-timeout")
            self.timeout = None if timeout is None else to_timeout(timeout)
            if int(head.fields.get(b"content-length", 0)) > self._path.rest.max_body:
                raise self.too_big()
            if self._path.inference.is_refusing:
                self.check_room(head, model.servable, model.method, model.requested)
        except ServingError as error:
            self.error = error.with_traceback(None)  # a traceback would refer to `self`

    def body_buffer(self, size: int) -> memoryview | None:
        if self.error is not None or size > self._path.rest.max_body:
            return None
        try:
            self._body = buffer = self.output.pool.take(size)
        except OSError:  # no memory, but the body can be smaller than its content-length
            return None
        return buffer

    def filled(self, num_bytes: int) -> bool:
        if self.error is not None or self._is_over:
            return False
        if not self.output.memory.take(num_bytes):
            self._drop(Overloaded(NO_MEMORY))
            return False
        self._num_counted += num_bytes
        return True

    def to_request(self, body: Buffer) -> Request:
        self._parsed = parse(self._model, body, self._length, self._v2.memory.read)
        return self._v2.wrap(self._model, self._parsed, RequestOptions(self.timeout))

    def _on_reply(self, reply: Reply) -> None:
        if reply.failure is None and len(reply.instances) > MANY and self._parsed is not None:
            self._call, self.added = None, answer_headers.headers_of(reply)
            self._task = asyncio.ensure_future(self._answer_soon(self._parsed, reply))
        else:
            super()._on_reply(reply)

    async def _answer_soon(self, parsed: InferRequest, reply: Reply) -> None:
        """Answer with many instances, joined on a thread; the client can disconnect meanwhile."""
        self._is_in_use = True
        try:
            outputs = await self._v2.finish_soon(parsed, reply)
            answer = self._to_answer(parsed, outputs)
        except Exception as error:
            self._is_in_use = False
            self._refuse(error)
        else:
            self._is_in_use = False
            self._write(*answer)
        if self._is_over:  # the client can have disconnected
            self._release()

    def answer(self, reply: Reply) -> Answer:
        assert self._parsed is not None
        try:
            return self._to_answer(self._parsed, self._v2.finish(self._parsed, reply))
        except Exception as error:
            return self.refuse(error)

    def _to_answer(self, parsed: InferRequest, outputs: Selected) -> Answer:
        length, body = to_answer(self._model, parsed, outputs)
        if length is not None:
            self.content_headers = (
                (b"content-type", b"application/octet-stream"),
                (_LENGTH, b"%d" % length),
            )
        return 200, body, None

    def refuse(self, error: Exception) -> Answer:
        error = to_serving_error(error)
        return status.of(error.code).http, to_body(error), status.retry_after(error)

    def _release(self) -> None:
        if not self._is_in_use:
            self._parsed = None  # its tensors are views of the body
            super()._release()

    def target(self) -> tuple[str, str]:
        return self._model.servable, self._model.method

    def too_big(self) -> TooLarge:
        return too_large(self._path.rest.max_body)
