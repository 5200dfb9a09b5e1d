"""POST /v2/models/NAME[/versions/N]/infer on the fast path, for what needs no ASGI: bodies that are
not compressed, nor megabytes of JSON, to methods.  All else is left to the routes.
"""

import asyncio
import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import Overloaded, ServingError, TooLarge
from mindspore_serving.frontends.bodies import too_large
from mindspore_serving.frontends.http.exchange import ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.predict import FastPath, Predict
from mindspore_serving.frontends.memory import NO_MEMORY
from mindspore_serving.frontends.mindspore.rest import Answer, to_timeout
from mindspore_serving.frontends.terms import Terms
from mindspore_serving.frontends.v2.errors import to_body, to_serving_error
from mindspore_serving.frontends.v2.http_inference import HEADER_LENGTH, MUCH, parse, to_answer
from mindspore_serving.frontends.v2.inference import V2, Selected
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire import status
from mindspore_serving.wire.v2.outputs import MANY
from mindspore_serving.wire.v2.request import InferRequest

_TARGET = re.compile(rb"/v2/models/([^/?#]+)(?:/versions/([0-9]{1,10}))?/infer")
_LENGTH = HEADER_LENGTH.encode()
_COMPRESSED = (b"gzip", b"deflate")


class FastInfer:
    """Opens the exchanges of one server, of one `kind`."""

    def __init__(
        self, v2: V2, kind: "Callable[[FastPath, RequestHead, ExchangeOutput], Infer] | None" = None
    ) -> None:
        self._v2 = v2
        self._kind = kind or Infer

    def __call__(self, path: FastPath, head: RequestHead, output: ExchangeOutput) -> "Infer | None":
        found = _TARGET.fullmatch(head.target)
        fields = head.fields
        if found is None or b"content-encoding" in fields:
            return None
        if fields.get(b"accept-encoding") in _COMPRESSED:
            return None
        if _LENGTH not in fields and int(fields.get(b"content-length", 0)) > MUCH:
            return None
        if path.origins is not None and not path.origins.is_plain_json(fields):
            return None
        try:
            name = unquote_to_bytes(found[1]).decode()
            model = self._v2.models.find(name, int(found[2] or 0))
        except (ServingError, UnicodeDecodeError):
            return None  # the routes say what is wrong
        if model.language is not None:
            return None
        call = self._kind(path, head, output)
        call.begin(self._v2, model, head)
        return call


class Infer(Predict):
    """One call."""

    protocol = "v2"
    declared_path = "/v2/models/{name}/infer"
    __slots__ = ("_is_read", "_length", "_model", "_parsed", "_task", "_v2")

    def __init__(self, path: FastPath, head: RequestHead, output: ExchangeOutput) -> None:
        super().__init__(path, head, output)
        self._is_read = False  # by a thread

    def begin(self, v2: V2, model: V2Model, head: RequestHead) -> None:
        """Read the head; what is wrong is answered when its turn has come."""
        self._v2 = v2
        self._model = model
        self._parsed: InferRequest | None = None
        length = head.fields.get(_LENGTH)
        self._length = None if length is None else length.decode("latin-1")
        try:
            if self._path.keys:
                self.holder = self._path.keys.find(head.fields.get(b"authorization")).admit()
            timeout = head.fields.get(b"x-request-timeout")
            self.timeout = None if timeout is None else to_timeout(timeout)
            if int(head.fields.get(b"content-length", 0)) > self._path.rest.max_body:
                raise self.too_big()
            if self._path.inference.is_refusing:
                self.ask_for_room(head, model.servable, model.method, model.version)
        except ServingError as error:
            self.error = error.with_traceback(None)  # that would refer to `self`

    def room(self, size: int) -> memoryview | None:
        if self.error is not None or size > self._path.rest.max_body:
            return None
        try:
            self._body = room = self.output.pool.take(size)
        except OSError:  # no memory: the body may be smaller than the client says
            return None
        return room

    def filled(self, num_bytes: int) -> bool:
        if self.error is not None or self._is_over:
            return False
        if not self.output.memory.take(num_bytes):
            self._drop(Overloaded(NO_MEMORY))
            return False
        self._num_held += num_bytes
        return True

    def to_request(self, body: Buffer) -> Request:
        self._parsed = parse(self._model, body, self._length, self._v2.memory.read)
        return self._v2.wrap(self._model, self._parsed, Terms(self.timeout))

    def _on_reply(self, reply: Reply) -> None:
        if reply.failure is None and len(reply.instances) > MANY and self._parsed is not None:
            self._call = None
            self._task = asyncio.ensure_future(self._answer_soon(self._parsed, reply))
        else:
            super()._on_reply(reply)

    async def _answer_soon(self, parsed: InferRequest, reply: Reply) -> None:
        """To many instances; the client may leave meanwhile."""
        self._is_read = True
        try:
            found = await self._v2.finish_soon(parsed, reply)
            answer = self._to_answer(parsed, found)
        except Exception as error:
            self._is_read = False
            self._refuse(error)
        else:
            self._is_read = False
            self._write(*answer)
        if self._is_over:  # the client may have left
            self._let_go()

    def answer(self, reply: Reply) -> Answer:
        assert self._parsed is not None
        try:
            return self._to_answer(self._parsed, self._v2.finish(self._parsed, reply))
        except Exception as error:
            return self.refuse(error)

    def _to_answer(self, parsed: InferRequest, found: Selected) -> Answer:
        length, body = to_answer(self._model, parsed, found)
        if length is not None:
            self.kind = (
                (b"content-type", b"application/octet-stream"),
                (_LENGTH, b"%d" % length),
            )
        return 200, body, None

    def refuse(self, error: Exception) -> Answer:
        error = to_serving_error(error)
        return status.of(error.code).http, to_body(error), status.retry_after(error)

    def _let_go(self) -> None:
        if not self._is_read:
            self._parsed = None  # its tensors are views of the body
            super()._let_go()

    def target(self) -> tuple[str, str]:
        return self._model.servable, self._model.method

    def too_big(self) -> TooLarge:
        return too_large(self._path.rest.max_body)
