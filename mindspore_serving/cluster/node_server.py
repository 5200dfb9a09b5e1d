"""The master's server for nodes: authentication, joining, heartbeats and loss of nodes.

A connection has to authenticate within HANDSHAKE_SECONDS, by the token and, with mutual TLS, by its
certificate, before any other data of it is read.
"""

import asyncio
import hmac
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindspore_serving import __version__, log
from mindspore_serving.aio import within
from mindspore_serving.cluster import node_messages
from mindspore_serving.cluster.node_connection import FAILURES, NodeConnection, accept
from mindspore_serving.cluster.node_messages import (
    PREAMBLE_SIZE,
    FirstMessage,
    FromNode,
    JoinCluster,
    check_node,
    digest,
    parse_preamble,
)
from mindspore_serving.cluster.nodes import Machine
from mindspore_serving.cluster.pending_connections import PendingConnections
from mindspore_serving.cluster.remote import RemoteLauncher
from mindspore_serving.cluster.spreading import SpreadingLauncher
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.process.vocabulary import Failed, Hello, Leaving, Ready, fingerprint

HANDSHAKE_SECONDS = 10.0
MAX_PENDING = 64  # connections that have not authenticated yet; one more closes the oldest
_LOG_SECONDS = 1.0  # between two log lines about refused connections


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and token of the port for nodes.

    `context` returns the TLS context for a new connection, None without TLS; `token` is "" if
    client certificates are enough.
    """

    context: Callable[[], ssl.SSLContext | None]
    token: str


class NodeServer:
    """A server for nodes, which become machines of `launcher` when they join."""

    def __init__(
        self, listener: socket.socket, security: Security, launcher: SpreadingLauncher
    ) -> None:
        self._listener = listener
        self._security = security
        self._launcher = launcher
        self._launchers: dict[NodeConnection, RemoteLauncher] = {}  # of the nodes
        self._pending = PendingConnections(MAX_PENDING)
        self._logged = -_LOG_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start accepting connections."""
        self._run(self._accept())

    async def close(self) -> None:
        """Close all connections; nodes then kill their workers and try to join again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                stream, address = await loop.sock_accept(self._listener)
            except OSError as error:  # out of descriptors, for example
                log.warning("cannot accept connections of nodes: %s", error)
                await asyncio.sleep(_LOG_SECONDS)
                continue
            task = self._run(self._handle(stream, address[0]))
            self._pending.add(task, address[0], partial(self._drop, task, address[0]))

    def _drop(self, task: "asyncio.Task[None]", host: str) -> None:
        self._warn(host, f"{MAX_PENDING} newer connections have not authenticated yet")
        task.cancel()

    async def _handle(self, stream: socket.socket, host: str) -> None:
        """Authenticate a connection, then serve it."""
        try:
            connection, message = await self._authenticate(stream)
        except FAILURES as error:
            self._warn(host, str(error))
            return
        finally:
            self._pending.discard(asyncio.current_task())
        try:
            if isinstance(message, JoinCluster):
                await self._serve(connection, message)
            elif not self._attach(message.id, connection):
                connection.abort()  # its start has timed out
        except InvalidInputs as error:
            self._warn(host, str(error))
            await connection.refuse(Failed(str(error)))

    def _attach(self, worker_id: str, connection: NodeConnection) -> bool:
        return any(nodes.attach(worker_id, connection) for nodes in self._launchers.values())

    async def _authenticate(self, stream: socket.socket) -> tuple[NodeConnection, FirstMessage]:
        """Authenticate a connection; return it with its first message after `Hello`.

        Raises one of FAILURES after closing the connection.
        """
        try:
            connection = await accept(stream, self._security.context(), HANDSHAKE_SECONDS)
        except OSError as error:
            stream.close()
            raise OSError(f"the TLS handshake failed: {error}") from error
        except BaseException:
            stream.close()
            raise
        try:
            first = self._first_message(connection)
            return connection, await within(HANDSHAKE_SECONDS, first)
        except InvalidInputs as error:
            await connection.refuse(Failed(str(error)))
            raise ValueError(str(error)) from None
        except asyncio.TimeoutError:
            connection.abort()
            raise OSError(f"it did not authenticate within {HANDSHAKE_SECONDS:g} s") from None
        except BaseException:
            connection.abort()
            raise

    async def _first_message(self, connection: NodeConnection) -> FirstMessage:
        token_digest = parse_preamble(await connection.reader.readexactly(PREAMBLE_SIZE))
        token = self._security.token
        if token and not hmac.compare_digest(token_digest, digest(token)):
            raise InvalidInputs("the token is wrong or missing")
        greeting: Hello = await connection.receive(Hello)
        if greeting.fingerprint != fingerprint(node_messages):
            raise InvalidInputs(_version_error(f"protocol {greeting.fingerprint[:40]!r}"))
        message: FirstMessage = await connection.receive(FirstMessage)
        return message

    async def _serve(self, connection: NodeConnection, offer: JoinCluster) -> None:
        """Serve a node until it is lost.  Raises InvalidInputs if it cannot join."""
        _check(offer)
        machine = Machine(
            offer.name, offer.slots, offer.device_type, tuple(offer.device_ids), offer.labels
        )
        launcher = RemoteLauncher(offer.name, connection.send)
        self._launcher.join(machine, launcher)
        self._launchers[connection] = launcher
        connection.send(Ready())
        log.info("node %s joined from %s: %s slots", machine.name, connection.peer, machine.slots)
        why = "the server is stopping"
        try:
            why = await _follow(connection, machine)
        finally:
            del self._launchers[connection]
            self._launcher.remove(machine)
            launcher.lose(why)
            connection.abort()
            log.warning("lost node %s: %s", machine.name, why)

    def _warn(self, host: str, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning("a connection from %s to the port for nodes is refused: %s", host, why)


async def _follow(connection: NodeConnection, machine: Machine) -> str:
    """Handle messages of a node until it is lost; return why."""
    alive = asyncio.create_task(connection.keep_alive())
    try:
        while True:
            message: FromNode = await connection.receive(FromNode)
            if isinstance(message, Leaving):
                machine.is_leaving = True
                log.info("node %s is leaving", machine.name)
    except FAILURES as error:
        return connection.why_lost(error)
    finally:
        alive.cancel()


def _check(offer: JoinCluster) -> None:
    if offer.version != __version__:
        raise InvalidInputs(_version_error(f"version {offer.version[:40]!r}"))
    check_node(offer)


def _version_error(theirs: str) -> str:
    ours = f"version {__version__!r} and protocol {fingerprint(node_messages)!r}"
    return f"the node has {theirs}, the master {ours}: install the same on both"
