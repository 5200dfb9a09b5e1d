"""The fast path: `POST /model/...` is answered without ASGI.

An ASGI application costs a task, two queues and a dozen dictionaries per request, which calls of
the classic RESTful protocol do not need.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mindspore_serving import log
from mindspore_serving.core.buffers import Buffer, BufferList
from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.service import Call, Inference, Reply, Request
from mindspore_serving.errors import Overloaded, ServingError
from mindspore_serving.frontends import answer_headers
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.http.early_refusal import RefusalPace, reads_body
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.keys import Keys, Tenant
from mindspore_serving.frontends.memory import NO_MEMORY
from mindspore_serving.frontends.mindspore.rest import (
    Answer,
    MsRest,
    find_route,
    sequence_of_headers,
    to_priority,
    to_request,
)
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.frontends.tenants.limits import LimitReached
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.wire.ms_json import Route

_PREFIX = b"/model/"
JSON = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class FastPath:
    """Opens exchanges of calls that need no ASGI.

    `open_other` opens those of other protocols.
    """

    inference: Inference
    rest: MsRest
    keys: Keys
    origins: OriginPolicy | None = None
    open_other: "Callable[[FastPath, RequestHead, ExchangeOutput], Exchange | None]" = lambda *_: (
        None
    )
    pace: RefusalPace = field(default_factory=RefusalPace)

    def open(self, head: RequestHead, output: ExchangeOutput) -> Exchange | None:
        """Return the exchange of a call; None if the application is to answer the request.

        That is so for other requests, for requests from browsers, and for methods whose names can
        mean a stream.
        """
        if head.method != b"POST" or self.keys.token_in(head.fields):
            return None  # the application can wait for the keys of a token's issuer
        if not head.target.startswith(_PREFIX):
            return self.open_other(self, head, output)
        if self.origins is not None and not self.origins.is_plain(head.fields):
            return None
        call = Predict(self, head, output)
        try:
            tenant = None
            if self.keys:
                tenant = self.keys.find(head.fields.get(b"authorization"))
            call.route = find_route(head.target)
            if call.route.method.endswith("_stream"):
                return None
            if tenant is not None:
                call.tenant = tenant.admit()
            call.timeout = self.rest.to_timeout(head.fields)
            call.priority = to_priority(head.fields.get(b"x-request-priority"))
            call.sequence = sequence_of_headers(head.fields)
            if self.inference.is_refusing:
                route = call.route
                call.check_room(head, route.servable, route.method, route.version)
        except ServingError as error:
            call.error = error.with_traceback(None)  # a traceback would refer to `call`
        return call


class Predict(Exchange):
    """A call, submitted when its body is complete and earlier requests are answered."""

    protocol = "rest"
    declared_path = "/model/{path}"
    __slots__ = (
        "_body",
        "_call",
        "_expects_continue",
        "_is_over",
        "_reads_body",
        "_is_started",
        "_is_submitted",
        "_num_counted",
        "_path",
        "error",
        "priority",
        "sequence",
        "tenant",
        "added",
        "headers",
        "content_headers",
        "route",
        "timeout",
    )

    def __init__(self, path: FastPath, head: RequestHead, output: ExchangeOutput) -> None:
        self.output = output  # as Exchange.__init__ does, inlined as calls cost time
        self.keep_alive = head.keep_alive
        self.is_complete = False
        self.has_responded = False
        self.span: RequestSpan | None = None
        self.entry: Entry | None = None
        self.num_sent = 0
        self.route: Route | None = None
        self.timeout: float | None = None  # seconds
        self.priority = 0
        self.sequence: SequenceStep | None = None
        self.content_headers: tuple[tuple[bytes, bytes], ...] = JSON
        self.added: Mapping[str, str] = {}  # headers of the answer
        self.headers = head.headers
        self.error: ServingError | None = None  # why the request is refused
        self.tenant: Tenant | None = None  # to be released at the end
        self._path = path
        self.request_id = id_of(head.fields.get(NAME))
        self._expects_continue = b"expect" in head.fields and head.expects_continue
        self._body: Buffer = b""
        self._num_counted = 0  # bytes of the body that count in the memory quota
        self._call: Call | None = None
        self._is_started = False
        self._is_submitted = False
        self._is_over = False  # the answer is written, or the client has disconnected
        self._reads_body = False  # though the request is refused

    def check_room(self, head: RequestHead, servable: str, method: str, version: int) -> None:
        """Refuse the request without reading its body if no worker has room."""
        error = self._path.inference.refusal(servable, version, method, self.timeout)
        if error is not None:
            self.error, self._reads_body = error, reads_body(head)

    def start(self) -> None:
        self._is_started = True
        if self.is_complete or (self.error is not None and not self._reads_body):
            self.resume()
        elif self._expects_continue:
            self.output.send_continue()

    def feed(self, data: bytes) -> None:
        if self.error is not None:
            return
        if len(self._body) + len(data) > self._path.rest.max_body:
            self._drop(self.too_big())
        elif not self._body:
            self._body = data
        elif not self.output.memory.take(len(data)):
            self._drop(Overloaded(NO_MEMORY))
        else:
            self._num_counted += len(data)
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += data

    def _drop(self, error: ServingError) -> None:
        self.error = error
        self._body = b""
        self.resume()

    def end(self) -> None:
        self.is_complete = True
        if not self._is_submitted:
            self.resume()

    def resume(self) -> None:
        """Submit or refuse the request as soon as possible.  A refusal needs no body."""
        if self._is_submitted or not self._is_started or self.output.flow.is_full:
            return
        if self.error is None and self.is_complete:
            self._submit()
        elif self.error is not None and (self.is_complete or not self._reads_body):
            self._is_submitted = True
            self._refuse_delayed(self.error)

    def _refuse_delayed(self, error: ServingError) -> None:
        loop = asyncio.get_running_loop()
        delay = self._path.pace.delay(loop.time()) if isinstance(error, Overloaded) else 0.0
        if delay:
            loop.call_later(delay, self._refuse, error)
        else:
            self._refuse(error)

    def disconnect(self) -> None:
        self._is_over = True
        self._release()
        if self._call is not None:
            self._call.cancel()

    def expire(self, error: ServingError) -> None:
        if self._call is not None:
            self._call.cancel()
        self._is_submitted = True
        self._refuse(error)

    def _submit(self) -> None:
        self._is_submitted = True
        try:
            request = self.to_request(self._body)
            request.id, request.span = self.request_id.decode(), self.span
            request.find_header = self._find_header
            if self.tenant is not None:
                request.tenant = self.tenant.owner
            self._body = b""
            self._call = self._path.inference.submit(request, self._on_reply)
        except Exception as error:
            self._refuse(error)

    def _on_reply(self, reply: Reply) -> None:
        self._call = None  # breaks a reference cycle
        if reply.cache or reply.version:
            self.added = answer_headers.headers_of(reply)
        if reply.failure is None:
            self._write(*self.answer(reply))
        else:
            self._refuse(reply.failure)

    def _find_header(self, name: str) -> str:
        return answer_headers.find_header(self.headers, name)

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, LimitReached):
            limits = ((name.encode(), value.encode()) for name, value in error.headers)
            self.content_headers = (*self.content_headers, *limits)
        with log.of_request(self.request_id.decode()):
            answer = self.refuse(error)
        self._write(*answer)

    # Functions of the protocol, which subclasses override.

    def to_request(self, body: Buffer) -> Request:
        """Make the request to the master.  Raises InvalidInputs."""
        assert self.route is not None
        assert not isinstance(body, memoryview)  # there is no body_buffer
        return to_request(
            self.route, body, self.timeout, priority=self.priority, sequence=self.sequence
        )

    def answer(self, reply: Reply) -> Answer:
        """Return the answer for a reply without a failure."""
        return self._path.rest.answer(reply, self.request_id)

    def refuse(self, error: Exception) -> Answer:
        """Return the answer for an error."""
        return self._path.rest.refuse(error)

    def route_path(self) -> str:
        return self.declared_path

    def complete_entry(self, entry: Entry) -> None:
        super().complete_entry(entry)
        entry.servable, entry.method = self.target()

    def target(self) -> tuple[str, str]:
        """Return the servable and the method, "" if unknown."""
        return ("", "") if self.route is None else (self.route.servable, self.route.method)

    def too_big(self) -> ServingError:
        """Return the error for a body over the limit."""
        return self._path.rest.too_big()

    def _write(self, status: int, body: bytes | BufferList, retry_after: str | None) -> None:
        if self._is_over:
            return
        self._is_over = self.has_responded = True
        self.status, self.num_sent = status, len(body)
        if self._num_counted or self.tenant is not None:
            self._release()
        if not self.is_complete:
            self.keep_alive = False  # refused before the body was read
        if (
            status == 200
            and self.keep_alive
            and retry_after is None
            and self.content_headers is JSON
            and not self.added
            and not isinstance(body, BufferList)
        ):
            self.output.answer_json(self.request_id, body)
            return
        fields = [*self.content_headers, (NAME, self.request_id)]
        for name, value in self.added.items():
            fields.append((name.encode(), value.encode()))
        if retry_after is not None:
            fields.append((b"retry-after", retry_after.encode()))
        self.output.answer(status, fields, body, keep_alive=self.keep_alive)

    def _release(self) -> None:
        """Release the memory and the tenant of the request."""
        if self._num_counted:
            self._body = b""
            self.output.memory.give_back(self._num_counted)
            self._num_counted = 0
        if self.tenant is not None:
            self.tenant.release()
            self.tenant = None
