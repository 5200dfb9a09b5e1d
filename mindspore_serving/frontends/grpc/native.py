"""A gRPC server whose HTTP/2 is done by the library pygrpc-native, in threads without the
interpreter's lock.  Knows no method.

Some methods, with one request and one response each, are answered by way of that library; all
others go through it to a server of grpcio behind it.  What the library lacks: TLS, limits of
connections, of the time of a message, of its size before it is read, and of answers that clients do
not take.  So it is for clients that are trusted, or for a place behind a proxy.
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
from mindspore_serving.frontends.access import Responses
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.access import Behavior, Counted
from mindspore_serving.frontends.grpc.native_call import NativeCall
from mindspore_serving.frontends.grpc.server import GrpcServer, cannot_listen
from mindspore_serving.frontends.grpc.unsent import UnsentReplies
from mindspore_serving.tls import Certificates

_MOST_EVENTS = 64  # at a time
_IO_THREADS = 1
# Seconds that the library has to send the last answers: closing drops what it has not sent, and it
# does not say what it has.
_SENDING = 0.5
_TOO_LARGE = "message of {} bytes is larger than max ({})"


class _Method(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class NativeGrpcServer:
    """As `GrpcServer`; `fast` are the paths (/package.Service/Method) that the library answers."""

    def __init__(
        self,
        address: Address,
        handlers: Sequence[Any],
        limits: ServerLimits,
        closing: Sequence[Callable[[], None]],
        responses: Responses,
        *,
        fast: Sequence[str],
        unsent: UnsentReplies | None = None,
    ) -> None:
        self.address = address
        self._limits = limits
        self._fast = fast
        self._behaviors = [_find(handlers, path, responses) for path in fast]
        self._directory = TemporaryDirectory(prefix="serving-grpc-")
        inner = Address(f"unix:{self._directory.name}/rest", path=f"{self._directory.name}/rest")
        connections = replace(limits, max_connections=1 << 16)  # all are the library's
        self._rest = GrpcServer(inner, handlers, connections, closing, responses, unsent=unsent)
        self._front: Any = None
        self._largest = 0
        self._calls: dict[int, NativeCall] = {}
        self._is_stopping = False

    async def start(self, max_message: int, tls: Certificates | None) -> None:
        """`max_message` is in bytes; `tls` has to be None.

        Raises StartError if the address cannot be bound, or the library is not installed.
        """
        if tls is not None:
            raise StartError("pygrpc-native has no TLS; use grpcio")
        self._largest = max_message
        await self._rest.start(max_message, None)
        try:
            self._front = self._listen()
        except BaseException:
            await self._rest.stop(0)
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
        await asyncio.gather(self._rest.stop(grace), self._drain(grace))
        if has_calls:
            await asyncio.sleep(_SENDING)
        await on_thread("grpc-close", self._front.close)
        self._directory.cleanup()

    def _listen(self) -> Any:
        """Raises StartError."""
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
        front.set_fallback(f"{self._directory.name}/rest")
        front.start()
        return front

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread's: takes calls from the library, as many as have come, to the event loop."""
        while (events := self._front.recv_batch_details(_MOST_EVENTS)) is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_events, loop, events)

    def _on_events(self, loop: asyncio.AbstractEventLoop, events: list[Any]) -> None:
        for _, call_id, method, body, _, details in events:
            if body is None:  # its client has left, or its deadline has passed
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
                call.task.add_done_callback(partial(self._end, call_id))  # also if it never begins

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
        """Until running calls are answered; those that are not after `grace` seconds are ended."""
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _find(handlers: Sequence[Any], path: str, responses: Responses) -> Behavior:
    for handler in handlers:
        found = Counted(handler, responses).service(_Method(path))
        if found is not None:
            behavior: Behavior = found.stream_unary
            return behavior
    raise ValueError(f"no handler has {path}")
