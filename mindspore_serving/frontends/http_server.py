"""Listens for HTTP: one socket, uvicorn's protocol, start and graceful stop.  Knows no route."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from mindspore_serving.core.service import Inference
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.http_protocol import IDLE_TIMEOUT, ServingProtocol
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.tls import Tls, to_context

HALF_SENT_GRACE = 1.0  # seconds that clients have to send the rest of a request when we stop


class HttpServer:
    """An HTTP server of `app`, with the short way to `inference`."""

    def __init__(
        self, address: addresses.Address, app: Any, inference: Inference, *, max_body: int
    ) -> None:
        self.address = address
        self.use_status_codes = False
        self.keys = Keys()
        self._app = app
        self._inference = inference
        self._max_body = max_body
        self._state = ServerState()
        self._server: asyncio.AbstractServer | None = None
        self._sweeper: asyncio.Task[None]

    async def start(self, tls: Tls | None) -> None:
        """Raises StartError if the address cannot be bound or the certificates do not fit."""
        context = to_context(tls) if tls is not None else None
        listener = addresses.listen(self.address)
        config = Config(
            self._app,
            http=ServingProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(IDLE_TIMEOUT),
        )
        config.load()
        loop = asyncio.get_running_loop()

        def protocol() -> ServingProtocol:
            made = ServingProtocol(config, self._state, {}, loop)
            made.inference = self._inference
            made.use_status_codes = self.use_status_codes
            made.max_body = self._max_body
            made.keys = self.keys
            return made

        self._server = await loop.create_server(protocol, sock=listener, ssl=context)
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, grace: float) -> None:
        """Free the port, let running requests finish within `grace` seconds, close the rest."""
        if self._server is None:
            return
        self._server.close()
        self._sweeper.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        now = asyncio.get_running_loop().time
        start = now()
        while self._state.connections and now() < start + grace:
            if now() > start + HALF_SENT_GRACE and not self._owes_answers():
                break
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._server = None

    def _owes_answers(self) -> bool:
        """Whether a connection waits for an answer; the others have half a request."""
        connections: set[Any] = self._state.connections
        return any(c.cycle is not None and not c.cycle.more_body for c in connections)

    async def _sweep(self) -> None:
        """Close connections on which nothing comes any more."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(IDLE_TIMEOUT / 10)
            for connection in list(self._state.connections):
                if isinstance(connection, ServingProtocol):
                    connection.close_if_idle(loop.time())
