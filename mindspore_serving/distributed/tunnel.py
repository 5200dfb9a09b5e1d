"""The agent's end of a connection with TLS: a plain socket, and the task that relays for it.

Bytes are copied on an event loop of this process, so that who uses the socket knows no TLS.
"""

import asyncio
import concurrent.futures
import socket
import ssl
from typing import TypeAlias

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.cluster.dialing import DIAL_SECONDS, CannotReach, dial
from mindspore_serving.cluster.node_connection import NodeConnection, copy, open_stream
from mindspore_serving.cluster.node_messages import MOST_DATA
from mindspore_serving.distributed.keeping import end_when_unanswered, keep_alive
from mindspore_serving.errors import StartError

LOOP = BackgroundLoop()
Relay: TypeAlias = concurrent.futures.Future[None]


def connect(host: str, port: int, context: ssl.SSLContext) -> tuple[socket.socket, Relay]:
    """A socket to the worker there, and what ends when all that was written to it before it was
    closed is sent.  Raises OSError if nobody answers, StartError if TLS does not come about.
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
        if stream is not None:  # None if that was all
            keep_alive(stream)
            end_when_unanswered(stream)
    except BaseException:
        connection.abort()
        raise
    ours, theirs = socket.socketpair()
    reader, writer = await open_stream(ours)
    writer.write(first)
    relay = _relay(connection, NodeConnection(reader, writer))
    return theirs, asyncio.run_coroutine_threadsafe(relay, asyncio.get_running_loop())


async def _first(connection: NodeConnection, where: str) -> bytes:
    """What the worker says first: only then it has accepted our certificate, or that we have none.
    Raises StartError, CannotReach.
    """
    try:
        first = await asyncio.wait_for(connection.reader.read(MOST_DATA), DIAL_SECONDS)
    except ssl.SSLError as error:
        text = f"{where} refuses our certificate, or that we have none: {error.reason or error}"
        raise StartError(text) from None
    except (OSError, asyncio.TimeoutError) as error:
        raise CannotReach(f"{where} does not greet: {error or 'it is silent'}") from None
    if not first:
        raise CannotReach(f"{where} has ended the connection")
    return first


async def _relay(worker: NodeConnection, agent: NodeConnection) -> None:
    """Until one end closes; what it has sent before is sent on."""
    copies = [
        asyncio.create_task(copy(worker.reader, agent.writer)),
        asyncio.create_task(copy(agent.reader, worker.writer)),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in copies:
            one.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        await asyncio.gather(worker.close(), agent.close())
