"""A grpc.aio server on an address: limits, TLS, start and graceful stop.  Knows no method."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc.aio

from mindspore_serving.errors import StartError
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.tls import Tls, to_credentials

MEGABYTE = 1 << 20


class GrpcServer:
    """Listens once started; messages over the limit are refused before they are decoded."""

    def __init__(self, address: Address, handlers: Sequence[Any]) -> None:
        self.address = address
        self._handlers = handlers
        self._server: grpc.aio.Server | None = None

    async def start(self, max_message_mb: int, tls: Tls | None) -> None:
        """Raises StartError if the address cannot be bound or the certificates do not fit."""
        limit = max_message_mb * MEGABYTE
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(tuple(self._handlers))
        self._remove_dead_socket()
        try:
            if tls is None:
                server.add_insecure_port(self.address.text)
            else:
                server.add_secure_port(self.address.text, to_credentials(tls))
            await server.start()
        except (RuntimeError, ValueError) as error:
            await server.stop(None)
            reason = str(error)
            if not isinstance(error, StartError):
                reason = "is it in use, or not of this machine?"
            raise StartError(
                "Serving Error: Serving gRPC server start failed, create server failed, "
                f"address {self.address.text}: {reason}"
            ) from error
        self._server = server

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones `grace` seconds, free the port."""
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None
            self._remove_dead_socket()

    def _remove_dead_socket(self) -> None:
        """The file of a unix socket outlives its server.  As the original did, replace it."""
        path = self.address.path
        with suppress(OSError):
            if path and stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
