"""A host: the process that starts the ranks of a model on a machine without the model's worker.

The master starts it on a node.  It listens for the other machines of its group, starts its ranks
when the machine of rank 0 says so, and ends with the group, or with the connection to the master.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from mindspore_serving.aio import FunctionThread, on_thread, within
from mindspore_serving.cluster import host_messages
from mindspore_serving.cluster.host_messages import HostOpen, OpenHost
from mindspore_serving.core.placement import ranks_of
from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel.bridge import Bridge
from mindspore_serving.llm.parallel.bridge_messages import FromMachine, Greeting, Opened, OpenGroup
from mindspore_serving.llm.parallel.bridge_process import Commands
from mindspore_serving.llm.parallel.links import RankMemory, create_memory
from mindspore_serving.llm.parallel.machine_end import DIAL_SECONDS, MachineEnd
from mindspore_serving.llm.parallel.messages import LoadRank
from mindspore_serving.llm.parallel.peer import Peer
from mindspore_serving.llm.parallel.processes import RankProcess, connect_machine
from mindspore_serving.llm.parallel.speed import measure_speed
from mindspore_serving.process.channel import connect, encode
from mindspore_serving.process.entry import enter
from mindspore_serving.process.frames import pack
from mindspore_serving.process.group import Group
from mindspore_serving.process.vocabulary import Failed, Ready, hello

OPEN_SECONDS = 300.0  # for the worker to start and to connect
MEET_SECONDS = 60.0  # for the other machines to connect


def main() -> int:
    """Run the process; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", help="shown in process lists only")
    parser.add_argument("--status", type=int, help="descriptor of status memory, which stays empty")
    parser.add_argument("--servables", help="the only directory of models; else any path")
    parser.add_argument("--device-id", type=int, help="not used: ranks choose devices")
    parser.add_argument("--address", required=True, help="address to listen at")
    arguments = enter(parser, ignores_signals=True)
    return asyncio.run(_run(connect(arguments.channel), arguments.address, arguments.servables))


async def _run(channel: socket.socket, address: str, servables: str | None) -> int:
    """Serve ranks until the group or the master ends; return the exit status."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    writer.write(encode(hello(host_messages)))
    commands = Commands(reader)
    try:
        opening = msgspec.msgpack.decode(await commands.next(), type=OpenHost)
        host = RankService(opening, address, servables)
        working = asyncio.create_task(host.run(writer))
        gone = asyncio.create_task(_wait_for_end(commands))
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error
        return 0
    except EOFError:
        return 0
    except StartError as error:
        print(f"ranks on this machine have ended: {error}", file=sys.stderr, flush=True)
        with suppress(OSError):
            writer.write(encode(Failed(str(error))))
            await writer.drain()
        return 1


async def _wait_for_end(commands: Commands) -> None:
    with suppress(EOFError):
        while True:
            await commands.next()


class RankService(MachineEnd):
    """Ranks of this machine, and its connections to the other machines of the group."""

    def __init__(self, opening: OpenHost, address: str, servables: str | None) -> None:
        super().__init__(-1, opening.credentials)
        self._address = address
        self._servables = servables
        self._group: Group | None = None
        self._opened: OpenGroup | None = None
        self._ranks: list[RankProcess] = []
        self._early = b""  # the first frame of rank 0
        self._writer = FunctionThread("commands")  # a rank may compute before it reads

    async def run(self, writer: asyncio.StreamWriter) -> None:
        """Listen, and serve the group until it ends.

        Raises StartError with the reason.
        """
        server = await asyncio.get_running_loop().create_server(
            lambda: Peer(self),
            self._address,
            0,
            ssl=self.context(accepts=True),
            ssl_handshake_timeout=DIAL_SECONDS,
        )
        try:
            host, port = server.sockets[0].getsockname()[:2]
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            speed = await on_thread("speed", measure_speed)
            writer.write(encode(HostOpen(where, speed)))
            opened = await self._meet()
            server.close()
            await self._host(opened)
        except StartError as error:
            if 0 in self.peers:
                self.peers[0].send(Failed(str(error)))
            raise
        finally:
            server.close()
            if self._group is not None:
                await self._group.close()
            self.close()

    async def _meet(self) -> OpenGroup:
        """Wait for the machine of rank 0, then connect with all others.  Raises StartError."""
        await self._wait(lambda: self._opened is not None, OPEN_SECONDS, "the worker")
        opened = self._opened
        assert opened is not None
        self.machine, self.names = opened.machine, opened.names
        for machine in range(1, opened.machine):
            await self.dial(machine, opened.addresses[machine - 1])
        count = len(opened.counts) - 1
        await self._wait(lambda: len(self.peers) == count, MEET_SECONDS, "another machine")
        return opened

    async def _host(self, opened: OpenGroup) -> None:
        """Start the ranks, and wait until one of them or another machine is lost."""
        self._group = group = Group()
        size, local = sum(opened.counts), ranks_of(opened.counts, opened.machine)
        memory = create_memory(size)
        sockets, ends = connect_machine(local, size)
        for rank, peers in sockets.items():
            process = RankProcess(rank, peers, memory, len(local))
            self._ranks.append(process)
            group.add(process)
            for end in peers.values():
                end.close()
        shared = RankMemory(memory, size)
        os.close(memory)
        self.bridge = Bridge(opened.machine, opened.counts, shared, ends, self.peers)
        self.peers[0].send(Opened())
        await self._wait(lambda: bool(self._early), 2 * MEET_SECONDS, "rank 0")
        self._writer.submit(self._write, self._load_of(self._early))
        alive = asyncio.create_task(self.keep_alive())
        ended = asyncio.create_task(group.wait())
        ready = asyncio.create_task(self._report_ready(group))
        await asyncio.wait({self.lost, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (alive, ready):
            task.cancel()
        ended.cancel()
        raise StartError(ended.result() if ended.done() else self.lost.result())

    async def _report_ready(self, group: Group) -> None:
        with suppress(StartError):  # which ends the group
            await group.ready()
            self.peers[0].send(Ready())

    async def _wait(self, condition: Callable[[], bool], seconds: float, who: str) -> None:
        """Wait until `condition` holds.  Raises StartError after `seconds` or at a loss."""

        async def wait() -> None:
            while not condition() and not self.lost.done():
                await self.changed()

        try:
            await within(seconds, wait())
        except asyncio.TimeoutError:
            raise StartError(f"{who} has not connected within {seconds:g} s") from None
        if self.lost.done():
            raise StartError(self.lost.result())

    def on_message(self, peer: Peer, message: FromMachine) -> None:
        if isinstance(message, Greeting):
            if peer.machine >= 0 or message.machine < 0:
                raise ValueError("a second greeting")
            peer.machine = message.machine
            self.add(peer)
        elif isinstance(message, OpenGroup) and peer.machine == 0 and self._opened is None:
            self._opened = message
            self.change()
        else:
            super().on_message(peer, message)

    def on_frame(self, peer: Peer, frame: bytes) -> None:
        if peer.machine != 0:
            raise ValueError("a frame of rank 0")
        if not self._early:
            self._early = frame
            self.change()
            return
        self._writer.submit(self._write, pack(frame))

    def _write(self, frame: bytes) -> None:
        """Write a frame to the ranks of this machine; on a thread, as a rank may compute."""
        for rank in self._ranks:
            with suppress(OSError):  # it has ended, which the group reports
                rank.channel.write(frame)

    def _load_of(self, frame: bytes) -> bytes:
        """Return the first frame of rank 0, with the directory of the model on this machine.

        Raises StartError if it is not in the directory of servables.
        """
        load = msgspec.msgpack.decode(frame, type=LoadRank)
        if self._servables is not None:
            assert self._opened is not None
            load = msgspec.structs.replace(
                load, directory=find_model(load.directory, self._opened.root, self._servables)
            )
        return encode(load)


def find_model(path: str, root: str, servables: str) -> str:
    """Return where a model that is at `path` below `root` is in the directory `servables`.

    Raises StartError if it would be outside of that.
    """
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    here = os.path.realpath(os.path.join(servables, relative))
    if not Path(here).is_relative_to(os.path.realpath(servables)):
        raise StartError(
            f"the model {path} is not below the server's directory of servables, {root}: this "
            "machine loads models of its --servables only"
        )
    return here


if __name__ == "__main__":
    sys.exit(main())
