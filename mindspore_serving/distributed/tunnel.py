"""The agent's end of a TLS connection: a plain socket, and a task that encrypts its traffic.

The task copies bytes on an event loop of this process, so that users of the socket need no TLS.
"""

import asyncio
import concurrent.futures
import socket
import ssl
from typing import TypeAlias

from mindspore_serving.aio import BackgroundLoop, within
from mindspore_serving.cluster.dialing import DIAL_SECONDS, CannotReach, dial
from mindspore_serving.cluster.node_connection import NodeConnection, copy, open_stream
from mindspore_serving.cluster.node_messages import MAX_DATA
from mindspore_serving.distributed.keepalive import keep_alive, set_send_timeout
from mindspore_serving.errors import StartError

LOOP = BackgroundLoop()
Relay: TypeAlias = concurrent.futures.Future[None]


def connect(host: str, port: int, context: ssl.SSLContext) -> tuple[socket.socket, Relay]:
    """Connect to the worker; return a plain socket and the task that relays it.

    After the socket is closed, the task ends once it has sent all data.  Raises OSError if nobody
    answers, StartError if the TLS handshake fails.
    """
    try:
        return LOOP.run(_open(host, port, context))
    except CannotReach as error:
        raise ConnectionError(str(error)) from None


async def _open(host: str, port: int, context: ssl.SSLContext) -> tuple[socket.socket, Relay]:
    connection = await dial("worker", host, port, context)
    try:
        first = await _first(connection, f"the worker at {host}:{port}")
        stream = connection.writer.get_extra_info("socket")
        if stream is not None:  # None if the connection has ended already
            keep_alive(stream)
            set_send_timeout(stream)
    except BaseException:
        connection.abort()
        raise
    ours, theirs = socket.socketpair()
    reader, writer = await open_stream(ours)
    writer.write(first)
    relay = _relay(connection, NodeConnection(reader, writer))
    return theirs, asyncio.run_coroutine_threadsafe(relay, asyncio.get_running_loop())


async def _first(connection: NodeConnection, where: str) -> bytes:
    """Return the first bytes of the worker, which has accepted our certificate by then.

    Raises StartError if it refuses the certificate or requires one, else CannotReach.
    """
    try:
        first = await within(DIAL_SECONDS, connection.reader.read(MAX_DATA))
    except ssl.SSLError as error:
        text = f"{where} refuses our certificate or requires one: {error.reason or error}"
        raise StartError(text) from None
    except (OSError, asyncio.TimeoutError) as error:
        raise CannotReach(f"{where} does not answer: {error or 'it is silent'}") from None
    if not first:
        raise CannotReach(f"{where} has closed the connection")
    return first


async def _relay(worker: NodeConnection, agent: NodeConnection) -> None:
    """Copy both ways until one end closes, then send its remaining data and close both."""
    copies = [
        asyncio.create_task(copy(worker.reader, agent.writer)),
        asyncio.create_task(copy(agent.reader, worker.writer)),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        await asyncio.gather(worker.close(), agent.close())
