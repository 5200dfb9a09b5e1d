"""The bridge beside rank 0: a process that connects this machine with the hosts of other machines.

It forwards the messages of rank 0 to all hosts, and reports when their ranks are ready, or why they
cannot be.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.bridge import Bridge, Ends
from mindspore_serving.llm.parallel.bridge_messages import FromMachine, Opened, OpenGroup
from mindspore_serving.llm.parallel.links import RankMemory
from mindspore_serving.llm.parallel.machine_end import MachineEnd
from mindspore_serving.llm.parallel.messages import Connect
from mindspore_serving.llm.parallel.peer import Peer
from mindspore_serving.process.channel import connect, encode
from mindspore_serving.process.entry import enter
from mindspore_serving.process.frames import FrameDecoder
from mindspore_serving.process.vocabulary import Failed, Ready, hello

_READ_SIZE = 1 << 18


def main() -> int:
    """Run the process; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--ends", nargs="+", required=True)
    arguments = enter(parser, ignores_signals=True)
    ends = {}
    for end in arguments.ends:
        pair, _, descriptor = end.partition("=")
        rank, _, other = pair.partition(":")
        ends[int(rank), int(other)] = socket.socket(fileno=int(descriptor))
    return asyncio.run(_run(connect(arguments.channel), arguments.memory, ends))


async def _run(channel: socket.socket, memory: int, ends: Ends) -> int:
    """Connect rank 0 with the other machines until either ends; return the exit status."""
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=_READ_SIZE)
    writer.write(encode(hello(messages)))
    commands = Commands(reader)
    try:
        connecting = msgspec.msgpack.decode(await commands.next(), type=Connect)
        end = _FirstMachine(connecting)
        try:
            await end.open(memory, ends)
            forwarding = asyncio.create_task(end.forward(commands))
            ready = asyncio.create_task(end.report_ready(writer))
            alive = asyncio.create_task(end.keep_alive())
            ends_first: set[asyncio.Future[Any]] = {forwarding, end.lost}
            await asyncio.wait(ends_first, return_when=asyncio.FIRST_COMPLETED)
            for task in (forwarding, ready, alive):
                task.cancel()
            if not end.lost.done():
                return 0  # rank 0 has closed its channel
            raise StartError(end.lost.result())
        finally:
            end.close()
    except EOFError:
        return 0
    except StartError as error:
        with suppress(OSError):
            writer.write(encode(Failed(str(error))))
            await writer.drain()
        return 1


class Commands:
    """Frames that rank 0 sends."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frames: FrameDecoder[bytes] = FrameDecoder(bytes)
        self._received: Iterator[bytes] = iter(())

    async def next(self) -> bytes:
        """Return the content of the next frame.  Raises EOFError at the end."""
        while (frame := next(self._received, None)) is None:
            data = await self._reader.read(_READ_SIZE)
            if not data:
                raise EOFError
            self._received = self._frames.feed(data)
        return frame


class _FirstMachine(MachineEnd):
    """The machine of rank 0."""

    def __init__(self, connecting: Connect) -> None:
        placement = connecting.placement
        super().__init__(0, placement.credentials)
        self.names = placement.names
        self._placement, self._root = placement, connecting.root
        self._opened: set[int] = set()
        self._ready: set[int] = set()

    async def open(self, memory: int, ends: Ends) -> None:
        """Connect to all hosts and have them start their ranks.  Raises StartError."""
        placed = self._placement
        for number, address in enumerate(placed.addresses, 1):
            await self.dial(number, address)
        for number, peer in self.peers.items():
            names = placed.names
            peer.send(OpenGroup(number, placed.counts, placed.addresses, names, self._root))
        while len(self._opened) < len(self.peers):
            await self.changed()
            if self.lost.done():
                raise StartError(self.lost.result())
        shared = RankMemory(memory, sum(placed.counts))
        os.close(memory)
        self.bridge = Bridge(0, placed.counts, shared, ends, self.peers)

    async def forward(self, commands: Commands) -> None:
        """Send frames of rank 0 to all hosts, until it closes its channel."""
        with suppress(EOFError):
            while True:
                frame = await commands.next()
                for peer in self.peers.values():
                    peer.send_frame(frame)

    async def report_ready(self, writer: asyncio.StreamWriter) -> None:
        """Report that the ranks of all machines are ready, once they are."""
        while len(self._ready) < len(self.peers):
            await self.changed()
        writer.write(encode(Ready()))

    def on_message(self, peer: Peer, message: FromMachine) -> None:
        if isinstance(message, Ready | Opened):
            (self._ready if isinstance(message, Ready) else self._opened).add(peer.machine)
            self.change()
        elif isinstance(message, Failed):
            self.lose(f"{self.name_of(peer.machine)}: {message.text}")
        else:
            super().on_message(peer, message)


if __name__ == "__main__":
    sys.exit(main())
