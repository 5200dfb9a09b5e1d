"""A gRPC server on the library pygrpc-native, which does HTTP/2 in threads without the GIL.

Some unary methods are answered through that library; it forwards all others to a server of grpcio.
The library lacks TLS and limits: of connections, of the time and size of a message before it is
read, and of answers that clients do not read.  So use it for trusted clients or behind a proxy.
Knows no method.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import grpc.aio

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import StartError
from mindspore_serving.extras import missing
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.access import Behavior, CountingHandler
from mindspore_serving.frontends.grpc.native_call import NativeCall
from mindspore_serving.frontends.grpc.server import GrpcServer, cannot_listen
from mindspore_serving.frontends.grpc.unsent import UnsentReplies
from mindspore_serving.tls import Certificates

_MAX_EVENTS = 64  # received at once
_IO_THREADS = 1
# Seconds to send the last answers: closing the library drops those that are unsent.
_FLUSH_SECONDS = 0.5
_TOO_LARGE = "message of {} bytes is larger than max ({})"


class _Method(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class NativeGrpcServer:
    """A `GrpcServer` with paths (/package.Service/Method), `fast`, that the library answers."""

    def __init__(
        self,
        address: Address,
        handlers: Sequence[Any],
        limits: ServerLimits,
        closing: Sequence[Callable[[], None]],
        responses: ResponseCounter,
        *,
        fast: Sequence[str],
        unsent: UnsentReplies | None = None,
    ) -> None:
        self.address = address
        self._limits = limits
        self._fast = fast
        self._behaviors = [_find(handlers, path, responses) for path in fast]
        self._directory = TemporaryDirectory(prefix="serving-grpc-")
        inner = Address(
            f"unix:{self._directory.name}/grpcio", path=f"{self._directory.name}/grpcio"
        )
        connections = replace(limits, max_connections=1 << 16)  # all of them come from the library
        self._grpcio = GrpcServer(inner, handlers, connections, closing, responses, unsent=unsent)
        self._front: Any = None
        self._largest = 0
        self._calls: dict[int, NativeCall] = {}
        self._is_stopping = False

    async def start(self, max_message: int, tls: Certificates | None) -> None:
        """Listen and serve; `max_message` is in bytes, `tls` must be None.

        Raises StartError if the address cannot be bound, or the library is not installed.
        """
        if tls is not None:
            raise StartError("pygrpc-native has no TLS: use grpcio")
        self._largest = max_message
        await self._grpcio.start(max_message, None)
        try:
            self._front = self._listen()
        except BaseException:
            await self._grpcio.stop(0)
            self._directory.cleanup()
            raise
        loop = asyncio.get_running_loop()
        receive = threading.Thread(target=self._receive, args=(loop,), name="grpc", daemon=True)
        receive.start()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones `grace` seconds, free the port."""
        if self._front is None or self._is_stopping:
            return
        self._is_stopping, has_calls = True, bool(self._calls)
        await asyncio.gather(self._grpcio.stop(grace), self._drain(grace))
        if has_calls:
            await asyncio.sleep(_FLUSH_SECONDS)
        await on_thread("grpc-close", self._front.close)
        self._directory.cleanup()

    def _listen(self) -> Any:
        """Start the library.  Raises StartError."""
        try:
            from pygrpc_native import NativeGrpcFront
        except ModuleNotFoundError as error:
            raise StartError(missing(error, "grpc_library='pygrpc-native'")) from None
        limits = self._limits
        try:
            front = NativeGrpcFront(
                self.address.text,
                [(path, False) for path in self._fast],
                io_threads=_IO_THREADS,
                call_details=True,
                keepalive_time_ms=int(limits.keepalive_time * 1000),
                keepalive_timeout_ms=int(limits.keepalive_timeout * 1000),
                max_concurrent_streams=limits.max_streams,
                max_metadata_size=limits.max_metadata,
            )
        except (OSError, ValueError) as error:
            raise StartError(cannot_listen(self.address, str(error))) from error
        front.set_fallback(f"{self._directory.name}/grpcio")
        front.start()
        return front

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass received calls from the library to the event loop; runs on a thread."""
        while (events := self._front.recv_batch_details(_MAX_EVENTS)) is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_events, loop, events)

    def _on_events(self, loop: asyncio.AbstractEventLoop, events: list[Any]) -> None:
        for _, call_id, method, body, _, details in events:
            if body is None:  # the client has disconnected, or the deadline has passed
                if call_id in self._calls:
                    self._calls[call_id].cancel()
            elif self._is_stopping:
                self._fail(call_id, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            elif len(body) > self._largest:
                text = _TOO_LARGE.format(len(body), self._largest)
                self._fail(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            else:
                call = self._calls[call_id] = NativeCall(body, *details)
                call.task = loop.create_task(self._answer(call_id, call, self._behaviors[method]))
                call.task.add_done_callback(
                    partial(self._end, call_id)
                )  # runs even if the task never starts

    async def _answer(self, call_id: int, call: NativeCall, behavior: Behavior) -> None:
        try:
            response = await behavior(None, call)  # type: ignore[arg-type]
        except grpc.aio.AbortError:
            self._fail(call_id, call.status or grpc.StatusCode.UNKNOWN, call.details, call.trailing)
        except asyncio.CancelledError:
            if not call.cancelled():
                self._fail(call_id, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        except Exception:
            log.error("answering a call", exc_info=True)
            self._fail(call_id, grpc.StatusCode.UNKNOWN, "the call failed")
        else:
            if len(response) <= self._largest:
                self._front.respond(call_id, response, None, call.trailing or None)
            else:
                text = _TOO_LARGE.format(len(response), self._largest)
                self._fail(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _end(self, call_id: int, _: object) -> None:
        self._calls.pop(call_id).end()

    def _fail(
        self, call_id: int, status: grpc.StatusCode, details: str, trailing: Any = ()
    ) -> None:
        self._front.fail(call_id, status.value[0], details, trailing or None)

    async def _drain(self, grace: float) -> None:
        """Wait for running calls; cancel those that are not answered within `grace` seconds."""
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _find(handlers: Sequence[Any], path: str, responses: ResponseCounter) -> Behavior:
    for handler in handlers:
        method = CountingHandler(handler, responses).service(_Method(path))
        if method is not None:
            behavior: Behavior = method.stream_unary
            return behavior
    raise ValueError(f"no handler has {path}")
