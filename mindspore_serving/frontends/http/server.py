"""HTTP server: one socket, its connections, start and graceful stop.  Knows no route."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import Forbidden
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.http.asgi import Application
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.connection import HttpConnection
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput, Fields
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.listener import Connecting, Listener
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.shared import SharedState
from mindspore_serving.frontends.http.unsent import UnsentAnswers
from mindspore_serving.frontends.http.upgraded import Upgraded, accepts_upgrade
from mindspore_serving.frontends.memory import Quota
from mindspore_serving.frontends.spans import begin_http
from mindspore_serving.tls import Certificates
from mindspore_serving.tracing.request_span import Tracer

# Seconds after the begin of a stop: until idle connections are closed, as requests can be on their
# way; until incomplete requests are refused; until clients must have read the refusals.
QUIET, HALF_SENT, LINGER = 0.1, 0.5, 1.0
SWEEP_PERIOD = 5.0  # seconds; less if a timeout is shorter


class ExchangeServer:
    """Server of connections whose requests are answered by the exchanges of `open_exchange`."""

    def __init__(
        self,
        address: addresses.Address,
        open_exchange: Callable[[RequestHead, ExchangeOutput], Exchange],
        max_body: int,
        limits: ServerLimits | None = None,
        *,
        responses: ResponseCounter | None = None,
        pool: BodyPool | None = None,
    ) -> None:
        """Create a server; large bodies are read into memory of `pool`."""
        self.address = address
        limits = limits or ServerLimits()
        memory = Quota(limits.max_body_memory, largest=max_body)
        unsent = UnsentAnswers(limits.max_unsent_memory)
        self.shared = SharedState(
            limits,
            max_body,
            open_exchange,
            memory,
            responses or ResponseCounter(),
            unsent,
            pool or BodyPool(),
        )
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, tls: Certificates | None, tag: str = "RESTful server") -> None:
        """Listen and serve.  Raises StartError, with `tag`, if the address cannot be bound."""
        listener, limits = addresses.listen(self.address, tag), self.shared.limits
        take_over = self.start_connecting(tls).take_over
        self._listener = Listener(listener, limits, take_over, has_tls=tls is not None)

    def start_connecting(self, tls: Certificates | None) -> Connecting:
        """Return an object that serves connections which other processes have accepted."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        head_timeout = self.shared.limits.head_timeout
        return Connecting(lambda done: HttpConnection(self.shared, done), tls, head_timeout)

    @property
    def is_running(self) -> bool:
        """True from `start` to `stop`."""
        return self._sweeper is not None

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        assert self._listener is not None
        return self._listener.port

    async def stop(self, grace: float) -> None:
        """Free the port, let running requests finish within `grace` seconds, close the rest.

        Requests that are not complete after half a second are refused.
        """
        if self._sweeper is None:
            return
        if self._listener is not None:
            self._listener.close()
        self._sweeper.cancel()
        self.shared.is_stopping = True
        connections, now = self.shared.connections, asyncio.get_running_loop().time
        start = now()
        quiet, half_sent, linger = (min(delay, grace / 2) for delay in (QUIET, HALF_SENT, LINGER))
        while connections and now() < start + grace:
            for connection in list(connections):
                if now() > start + half_sent:
                    connection.refuse_incomplete()
                else:
                    connection.shut_down(closes=now() > start + quiet)
            is_pending = any(each.has_pending_answer for each in connections)
            if now() > start + linger and not is_pending:
                break
            await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.abort()
        self._listener = self._sweeper = None

    async def _sweep(self) -> None:
        loop, limits = asyncio.get_running_loop(), self.shared.limits
        shortest = min(limits.head_timeout, limits.body_timeout, limits.idle_timeout)
        period = min(SWEEP_PERIOD, shortest / 2, limits.request_timeout / 2)
        while True:
            await asyncio.sleep(period)
            self.shared.pool.trim()
            self.end_late_connections(loop.time())
            self.shared.unsent.end_oldest()

    def end_late_connections(self, now: float) -> None:
        """End connections whose clients send or read too slowly; `now` is the loop's time."""
        for connection in list(self.shared.connections):
            connection.end_if_late(now)


class Calls(Protocol):
    """Methods of gRPC."""

    def is_call(self, head: RequestHead) -> bool:
        """Return whether a request is a call."""
        ...

    def open(self, head: RequestHead, output: ExchangeOutput, cors: Fields = ()) -> Exchange:
        """Return the exchange of a call; a web page may read its answer by the fields `cors`."""
        ...

    def close(self) -> None:
        """Let the services know that their server stops."""
        ...


class HttpServer(ExchangeServer):
    """HTTP server of an ASGI application, and of the calls that the fast path takes."""

    def __init__(
        self,
        address: addresses.Address,
        app: ASGIApp,
        path: FastPath,
        limits: ServerLimits | None = None,
        responses: ResponseCounter | None = None,
        *,
        tracer: Tracer | None = None,
        pool: BodyPool | None = None,
        calls: Calls | None = None,
    ) -> None:
        """Create a server; large bodies are read into memory of `pool`.

        `calls` are the methods that clients of gRPC, gRPC-Web and Connect may call.
        """
        self._app, self._path, self._tracer, self._calls = app, path, tracer, calls
        max_body = path.rest.max_body
        super().__init__(address, self._open, max_body, limits, responses=responses, pool=pool)
        self.shared.accepts_upgrade = accepts_upgrade

    def _open(self, head: RequestHead, output: ExchangeOutput) -> Exchange:
        if head.is_upgrade:
            return self._with_span(Upgraded(self._app, head, output), head, output)
        exchange = None if head.version == "2" else self._path.open(head, output)
        if exchange is None and (call := self._open_call(head, output)) is not None:
            return call
        if exchange is None and head.version == "2":
            exchange = self._path.open(head, output)
        return self._with_span(exchange or Application(self._app, head, output), head, output)

    def _with_span(self, exchange: Exchange, head: RequestHead, output: ExchangeOutput) -> Exchange:
        if self._tracer is not None:
            scheme = "https" if output.describe("sslcontext") else "http"
            exchange.span = begin_http(self._tracer, head, exchange.request_id, scheme)
        return exchange

    def _open_call(self, head: RequestHead, output: ExchangeOutput) -> Exchange | None:
        """Return the exchange of a call of gRPC; None if the application answers the request."""
        calls, origins = self._calls, self._path.origins
        if calls is None or not calls.is_call(head):
            return None
        if origins is None:
            return calls.open(head, output)
        try:
            origins.check("POST", head.fields)
        except Forbidden:
            return None  # the application says why
        return calls.open(head, output, origins.cors_fields(head.fields))

    async def stop(self, grace: float) -> None:
        if self._calls is not None:
            self._calls.close()
        await super().stop(grace)
