"""Hosts of ranks, on the master's side: started on nodes, and ended with their worker."""

import asyncio
from collections.abc import Sequence

from mindspore_serving import extras
from mindspore_serving.aio import within
from mindspore_serving.cluster import host_messages
from mindspore_serving.cluster.base import Launched
from mindspore_serving.cluster.host_messages import FromHost, HostOpen, OpenHost
from mindspore_serving.cluster.node_connection import FAILURES, NodeConnection, open_stream
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.process.vocabulary import Failed, Hello, version_mismatch
from mindspore_serving.tls import make_group_certificate

OPEN_SECONDS = 60.0  # for a host to import what it needs and to listen
CAUSE_SECONDS = 5.0  # for a worker to answer its requests after it has lost a host


class RankHost:
    """A host process on a node, and the connection to it."""

    def __init__(self, launched: Launched, connection: NodeConnection, opened: HostOpen) -> None:
        self.launched = launched
        self.address, self.speed = opened.address, opened.speed
        self._connection = connection

    def kill(self) -> None:
        """Kill the process and its ranks."""
        self.launched.process.kill()
        self._connection.abort()


def make_credentials(purpose: str = "a model over several machines") -> GroupCredentials:
    """Return credentials for a new group of machines.

    Raises StartError, with the `purpose`, without the library.
    """
    try:
        return GroupCredentials(*make_group_certificate())
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, purpose)) from error


async def open_host(launched: Launched, credentials: GroupCredentials) -> RankHost:
    """Have a started host listen for the other machines.

    Raises StartError if it cannot, ResourceShortage if it is lost; then it is killed.
    """
    connection = NodeConnection(*await open_stream(launched.stream))
    try:
        connection.send(OpenHost(credentials))
        opened = await within(OPEN_SECONDS, _answer(connection))
    except BaseException as error:
        launched.process.kill()
        connection.abort()
        if isinstance(error, (asyncio.TimeoutError, *FAILURES)):
            tail = launched.process.log_tail()[-800:]
            why = tail or str(error) or "it is silent"
            raise ResourceShortage(f"a host of ranks has not started: {why}") from error
        raise
    return RankHost(launched, connection, opened)


async def _answer(connection: NodeConnection) -> HostOpen:
    """Return where the host listens.  Raises StartError, or one of FAILURES."""
    while True:
        message: FromHost = await connection.receive(FromHost)
        if isinstance(message, HostOpen):
            return message
        if isinstance(message, Failed):
            raise StartError(f"a host of ranks: {message.text}")
        assert isinstance(message, Hello)
        if problem := version_mismatch(message, host_messages, "host of ranks"):
            raise StartError(problem)


async def end_together(worker: Launched, hosts: Sequence[RankHost]) -> None:
    """Wait until the worker or a host has ended, then end all of them.

    A worker that has lost a host answers its requests before it ends.  The worker is left once the
    machine of a host leaves.
    """
    ended = asyncio.ensure_future(worker.process.wait())
    waits = {ended, *(asyncio.ensure_future(host.launched.process.wait()) for host in hosts)}
    leaving = [asyncio.create_task(_pass_on(host, worker)) for host in hosts]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=CAUSE_SECONDS)
    finally:
        for wait in (*waits, *leaving):
            wait.cancel()
        worker.process.kill()
        for host in hosts:
            host.kill()


async def _pass_on(host: RankHost, worker: Launched) -> None:
    await host.launched.is_left.wait()
    worker.is_left.set()
