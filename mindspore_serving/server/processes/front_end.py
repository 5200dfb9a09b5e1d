"""A front-end process: serves connections, and answers requests or forwards them to the master."""

import asyncio
import socket
from collections.abc import Coroutine
from itertools import count
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.http.listener import Connecting
from mindspore_serving.frontends.http.server import ExchangeServer
from mindspore_serving.frontends.request_log import RequestLog
from mindspore_serving.process.vocabulary import Exit, Failed, Ready, hello
from mindspore_serving.server.processes import messages
from mindspore_serving.server.processes.catalog import Catalog
from mindspore_serving.server.processes.child import CONNECTION
from mindspore_serving.server.processes.inference import RemoteInference
from mindspore_serving.server.processes.master_app import MasterCalls
from mindspore_serving.server.processes.messages import Serve, ToFrontEnd
from mindspore_serving.server.processes.pipe import Ends, Pipe
from mindspore_serving.server.processes.resources import AccessPolicy, FrontEndResources
from mindspore_serving.tracing.options import TraceOptions, change_ratio


class FrontEnd:
    """The state of a front-end process; `ended` is done after `Exit`, or when the master ends."""

    def __init__(self, ends: Ends, connections: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._pipe: Pipe[ToFrontEnd] = Pipe(ends, ToFrontEnd, self._take, self._end)
        self._pipe.send(hello(messages))
        self._numbers = count(1)
        catalog = Catalog()
        self._inference = RemoteInference(self._pipe, self._numbers, catalog)
        self._master = MasterCalls(self._pipe, self._numbers)
        self._resources = FrontEndResources(
            RequestLog(self._inference) if log.has_requests() else self._inference,
            catalog,
            self._master,
            ResponseCounter(is_logged=log.has_access_log()),
            self._pipe.take_memory,
        )
        self._servers: list[ExchangeServer] = []
        self._admissions: list[messages.Admission] = []  # of each server, also before it starts
        self._policies: dict[int, AccessPolicy] = {}
        self._connecting: dict[int, Connecting] = {}  # by server, as the policies
        self._connections = connections
        self._connections.setblocking(False)
        self._loop.add_reader(self._connections, self._accept)
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, message: ToFrontEnd) -> None:
        if isinstance(message, messages.ControlAnswer):
            self._inference.take(message)
        elif isinstance(
            message, messages.BodyRequest | messages.ResponseChunk | messages.AsgiCallEnd
        ):
            self._master.take(message)
        elif isinstance(message, messages.ServedState):
            self._set(message)
        elif isinstance(message, Exit):
            self._run(self._stop(message.seconds or 0.0))
        elif isinstance(message, Serve):
            self._admissions.append(message.admission)
            self._serve(message, len(self._admissions) - 1)
        elif isinstance(message, messages.Admit):
            self._admit(message)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set(self, state: messages.ServedState) -> None:
        self._resources.catalog.set(state)
        if state.log_level != log.changed_level():
            log.set_level(state.log_level)
        change_ratio(state.trace_ratio)
        counts = self._resources.responses.counts
        rows = [(protocol, code, number) for (protocol, code), number in counts.items()]
        counts.clear()
        self._pipe.send(messages.Synced(state.serial, rows))

    def _admit(self, message: messages.Admit) -> None:
        if message.server < len(self._admissions):  # else its Serve has it
            self._admissions[message.server] = message.admission
        policy = self._policies.get(message.server)
        if policy is not None:
            try:
                policy.replace(message.admission)
            except ServingError as error:
                log.error("%s", error)

    def _serve(self, message: Serve, number: int) -> None:
        try:
            self._trace(message.traces)
            policy = self._policies[number] = AccessPolicy.of(
                message.options, self._admissions[number]
            )
            self._start(message, policy, number)
        except (ServingError, OSError) as problem:
            self._pipe.send(Failed(str(problem)))
        else:
            self._pipe.send(Ready())

    def _trace(self, options: TraceOptions | None) -> None:
        if options is not None and self._resources.tracer is None:
            from mindspore_serving.tracing.otlp import OtlpTracer

            self._resources.tracer = OtlpTracer(options)

    def _start(self, message: Serve, policy: AccessPolicy, number: int) -> None:
        from mindspore_serving.server.processes.serving_grpc import make_grpc_server
        from mindspore_serving.server.processes.serving_http import make_http_server

        make = make_http_server if message.has_http else make_grpc_server
        server = make(self._resources, message, policy.keys, number)
        self._connecting[number] = server.start_connecting(policy.certificates)
        self._servers.append(server)

    def _accept(self) -> None:
        """Receive an accepted connection from the master and serve it."""
        try:
            name, (descriptor,), *_ = socket.recv_fds(self._connections, CONNECTION.size, 1)
        except (BlockingIOError, ValueError):  # ValueError: the master has ended
            return
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        server, number = CONNECTION.unpack(name)
        closed = messages.Closed(number)
        self._run(self._connecting[server].take_over(connection, lambda: self._pipe.send(closed)))

    async def _stop(self, grace: float) -> None:
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        tracer: Any = self._resources.tracer
        if tracer is not None:
            await on_thread("traces", tracer.close)
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
