"""Listens for nodes: who may join, how many may knock at once, and when one is lost.

A connection has to prove itself within seconds, by the token and, with mutual TLS, by its
certificate, before anything else of it is read.
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
from mindspore_serving.cluster import node_messages
from mindspore_serving.cluster.node_connection import FAILURES, NodeConnection, accept
from mindspore_serving.cluster.node_messages import (
    PREAMBLE_SIZE,
    FirstMessage,
    FromNode,
    JoinCluster,
    check_offer,
    digest,
    parse_preamble,
)
from mindspore_serving.cluster.nodes import Machine
from mindspore_serving.cluster.remote import RemoteLauncher
from mindspore_serving.cluster.spreading import SpreadingLauncher
from mindspore_serving.cluster.strangers import Strangers
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.process.vocabulary import Failed, Hello, Leaving, Ready, fingerprint

HANDSHAKE_SECONDS = 10.0
MOST_UNKNOWN = 64  # connections that have not proved themselves yet; the oldest gives way
_LOG_SECONDS = 1.0  # between two lines about those that could not


@dataclass(frozen=True, slots=True)
class Security:
    """`context` is that of a new connection, None without TLS; `token` is "" where certificates of
    clients are enough.
    """

    context: Callable[[], ssl.SSLContext | None]
    token: str


class NodeServer:
    """Nodes that join become machines of `launcher`."""

    def __init__(
        self, listener: socket.socket, security: Security, launcher: SpreadingLauncher
    ) -> None:
        self._listener = listener
        self._security = security
        self._launcher = launcher
        self._launchers: dict[NodeConnection, RemoteLauncher] = {}  # of the nodes
        self._strangers = Strangers(MOST_UNKNOWN)
        self._logged = -_LOG_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._run(self._accept())

    async def close(self) -> None:
        """End the connections; nodes then end their workers, and try to join again."""
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
            except OSError as error:  # no descriptors, say
                log.warning("nodes cannot connect: %s", error)
                await asyncio.sleep(_LOG_SECONDS)
                continue
            meeting = self._run(self._meet(stream, address[0]))
            self._strangers.add(meeting, address[0], partial(self._push_out, meeting, address[0]))

    def _push_out(self, meeting: "asyncio.Task[None]", host: str) -> None:
        self._warn(host, f"{MOST_UNKNOWN} newer ones have not proved themselves yet")
        meeting.cancel()

    async def _meet(self, stream: socket.socket, host: str) -> None:
        """Let one connection prove itself, then serve it."""
        try:
            connection, message = await self._prove(stream)
        except FAILURES as error:
            self._warn(host, str(error))
            return
        finally:
            self._strangers.discard(asyncio.current_task())
        try:
            if isinstance(message, JoinCluster):
                await self._serve(connection, message)
            elif not any(one.attach(message.id, connection) for one in self._launchers.values()):
                connection.abort()  # its start was given up
        except InvalidInputs as error:
            self._warn(host, str(error))
            await connection.refuse(Failed(str(error)))

    async def _prove(self, stream: socket.socket) -> tuple[NodeConnection, FirstMessage]:
        """Raises one of FAILURES, when the connection has ended."""
        try:
            connection = await accept(stream, self._security.context(), HANDSHAKE_SECONDS)
        except OSError as error:
            stream.close()
            raise OSError(f"the handshake of TLS has failed: {error}") from error
        except BaseException:
            stream.close()
            raise
        try:
            first = self._first_message(connection)
            return connection, await asyncio.wait_for(first, HANDSHAKE_SECONDS)
        except InvalidInputs as error:
            await connection.refuse(Failed(str(error)))
            raise ValueError(str(error)) from None
        except asyncio.TimeoutError:
            connection.abort()
            raise OSError("it did not prove itself in time") from None
        except BaseException:
            connection.abort()
            raise

    async def _first_message(self, connection: NodeConnection) -> FirstMessage:
        proof = parse_preamble(await connection.reader.readexactly(PREAMBLE_SIZE))
        token = self._security.token
        if token and not hmac.compare_digest(proof, digest(token)):
            raise InvalidInputs("the token is wrong or missing")
        greeting: Hello = await connection.receive(Hello)
        if greeting.fingerprint != fingerprint(node_messages):
            raise InvalidInputs(_other_version(f"protocol {greeting.fingerprint[:40]!r}"))
        message: FirstMessage = await connection.receive(FirstMessage)
        return message

    async def _serve(self, connection: NodeConnection, offer: JoinCluster) -> None:
        """Raises InvalidInputs if the node is not wanted."""
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
            log.warning("node %s is gone: %s", machine.name, why)

    def _warn(self, host: str, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning("a connection from %s to the port for nodes is refused: %s", host, why)


async def _follow(connection: NodeConnection, machine: Machine) -> str:
    """Until the node is gone; returns why."""
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
        raise InvalidInputs(_other_version(f"version {offer.version[:40]!r}"))
    check_offer(offer)


def _other_version(found: str) -> str:
    ours = f"version {__version__!r} and protocol {fingerprint(node_messages)!r}"
    return f"the node has {found}, the master {ours}: install the same on both"
