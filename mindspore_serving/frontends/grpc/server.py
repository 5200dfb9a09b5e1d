"""gRPC server of grpcio: limits, TLS, start and graceful stop.  Knows no method."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc.aio

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import StartError
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import (
    Address,
    connection_limits,
    prepare_unix_socket,
    remove_socket_file,
)
from mindspore_serving.frontends.grpc import connections as grpc_connections
from mindspore_serving.frontends.grpc.access import CountingHandler
from mindspore_serving.frontends.grpc.unsent import UnsentReplies
from mindspore_serving.tls import Certificates

_WATCH_SECONDS = 0.2  # between two checks of the server and its connections


class GrpcServer:
    """A server of grpc.aio; messages over the limit are refused before they are decoded."""

    def __init__(
        self,
        address: Address,
        handlers: Sequence[Any],
        limits: ServerLimits | None = None,
        closing: Sequence[Callable[[], None]] = (),
        responses: ResponseCounter | None = None,
        *,
        unsent: UnsentReplies | None = None,
        shares_port: bool = False,
    ) -> None:
        """Create a server that does not listen yet.

        `closing` are called first when the server stops.  `unsent` also has the answers that
        handlers count themselves.  With `shares_port` several servers of this user share the
        connections to a port.
        """
        self.address = address
        self._limits = limits or ServerLimits()
        self.unsent = unsent or UnsentReplies(self._limits.max_unsent_memory)
        counts = responses or ResponseCounter()
        self._handlers: list[Any] = [
            CountingHandler(handler, counts, self.unsent) for handler in handlers
        ]
        self._closing = closing
        self._shares_port = shares_port
        self._server: grpc.aio.Server | None = None
        self.num_restarts = 0
        self._ending: set[asyncio.Task[None]] = set()  # tasks that stop failed servers
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, max_message: int, tls: Certificates | None) -> None:
        """Listen and serve; `max_message` is in bytes.

        Raises StartError if the address cannot be bound.
        """
        self._server = await self._listen(max_message, tls)
        self._watcher = asyncio.create_task(self._keep_running(self._server, max_message, tls))

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones `grace` seconds, free the port."""
        if self._watcher is None:
            return
        self._watcher.cancel()
        await asyncio.wait([self._watcher])
        self._watcher = None
        for close in self._closing:
            close()
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
        remove_socket_file(self.address)

    async def _keep_running(
        self, server: grpc.aio.Server, max_message: int, tls: Certificates | None
    ) -> None:
        """Restart the server when it fails; running calls of the old one end by themselves.

        With grpcio 1.85 any client can make it fail: a call whose path is not UTF-8 ends the
        server's loop.
        """
        while True:
            try:
                await self._end_surplus()
                await server.wait_for_termination(_WATCH_SECONDS)
            except Exception as error:
                log.warning("gRPC server on %s failed (%s), restarting", self.address.text, error)
            else:
                continue
            self._server = None
            self.num_restarts += 1
            ending = asyncio.create_task(_end(server, self._limits.request_timeout))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            while self._server is None:
                try:
                    self._server = server = await self._listen(max_message, tls)
                except StartError as error:  # the port is maybe not free yet
                    log.warning("%s", error)
                    await asyncio.sleep(_WATCH_SECONDS)

    async def _end_surplus(self) -> None:
        """End connections of addresses that have too many."""
        _, limit = connection_limits(self._limits, share=4)
        port = self.address.port
        try:
            if not port or grpc_connections.num_descriptors() <= limit:  # there cannot be too many
                return
            count = await on_thread("connections", grpc_connections.end_surplus, port, limit)
        except OSError:  # no free descriptor: the next check can have one
            return
        if count:
            log.warning("gRPC: closed %d connections of addresses that have too many", count)

    async def _listen(self, max_message: int, tls: Certificates | None) -> grpc.aio.Server:
        """Start a server of grpcio.  Raises StartError."""
        options = [*_options(self._limits, max_message), ("grpc.so_reuseport", self._shares_port)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(tuple(self._handlers))
        prepare_unix_socket(self.address)
        try:
            if tls is None:
                server.add_insecure_port(self.address.text)
            else:
                server.add_secure_port(self.address.text, tls.to_credentials())
            await server.start()
        except (RuntimeError, ValueError) as error:
            await server.stop(None)
            reason = str(error)
            if not isinstance(error, StartError):
                reason = "is it in use, or not of this machine? Choose another"
            raise StartError(cannot_listen(self.address, reason)) from error
        return server


def cannot_listen(address: Address, reason: str) -> str:
    """Return the error text for an address that cannot be bound."""
    return (
        "Serving Error: Serving gRPC server start failed, create server failed, "
        f"address {address.text}: {reason}"
    )


async def _end(server: grpc.aio.Server, grace: float) -> None:
    with suppress(Exception):  # the failure again
        await server.stop(grace)


def _options(limits: ServerLimits, max_message: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        # What is not read yet stays with the client: without this, up to 64 MB of each call.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.max_metadata_size", limits.max_metadata),
        ("grpc.absolute_max_metadata_size", limits.max_metadata),
        (
            "grpc.max_allowed_incoming_connections",
            connection_limits(limits, share=4)[0],
        ),
        ("grpc.server_handshake_timeout_ms", int(limits.head_timeout * 1000)),
        ("grpc.keepalive_time_ms", int(limits.keepalive_time * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
