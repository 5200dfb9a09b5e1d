"""This machine in a group of machines: its connections to the others, and what they send.

The process of a bridge beside rank 0 and the hosts on other machines differ in their messages.
"""

import asyncio
import ssl

from mindspore_serving.aio import within
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel import bridge_messages
from mindspore_serving.llm.parallel.bridge import Bridge
from mindspore_serving.llm.parallel.bridge_messages import Beats, FromMachine, Greeting
from mindspore_serving.llm.parallel.links import Bytes
from mindspore_serving.llm.parallel.peer import Notice, Peer
from mindspore_serving.process.vocabulary import Hello, hello, version_mismatch
from mindspore_serving.tls import to_group_context

DIAL_SECONDS = 10.0


class MachineEnd:
    """Connections of machine number `machine` to the others; a `Receiver`.

    `lost` is set to the reason when the first connection ends; `names` are those of all machines.
    """

    def __init__(self, machine: int, credentials: GroupCredentials) -> None:
        self.machine = machine
        self.peers: dict[int, Peer] = {}
        self.names: tuple[str, ...] = ()
        self.bridge: Bridge | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._credentials = credentials
        self._changed = asyncio.Event()

    def context(self, *, accepts: bool) -> ssl.SSLContext:
        """Return the context of connections of the group."""
        pem = self._credentials
        return to_group_context(pem.certificate, pem.private_key, accepts=accepts)

    async def dial(self, machine: int, address: str) -> None:
        """Connect to a machine of the group.  Raises StartError."""
        host, _, port = address.rpartition(":")
        context = self.context(accepts=False)
        connecting = asyncio.get_running_loop().create_connection(
            lambda: Peer(self, machine), host.strip("[]"), int(port), ssl=context
        )
        try:
            _, peer = await within(DIAL_SECONDS, connecting)
        except (OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"no answer within {DIAL_SECONDS:g} s"
            text = f"{self.name_of(machine)} at {address} cannot be reached: {why}"
            raise StartError(text) from error
        peer.send(hello(bridge_messages))
        peer.send(Greeting(self.machine))
        self.add(peer)

    def add(self, peer: Peer) -> None:
        """Add a machine.  Raises ValueError if it is there already."""
        if peer.machine in self.peers:
            raise ValueError(f"machine {peer.machine} has connected twice")
        self.peers[peer.machine] = peer
        self.change()

    async def changed(self) -> None:
        """Wait for the next `change`, or the loss of a machine."""
        self._changed.clear()
        await self._changed.wait()

    def change(self) -> None:
        """Wake those who wait in `changed`."""
        self._changed.set()

    async def keep_alive(self) -> None:
        """Exchange heartbeats with the other machines until one is silent."""
        assert self.bridge is not None
        self.lose(self.name_of(await self.bridge.keep_alive()) + " is silent")

    def name_of(self, machine: int) -> str:
        """Return what errors call a machine."""
        name = self.names[machine] if machine < len(self.names) else ""
        return f"machine {name}" if name else "the server's machine"

    def lose(self, why: str) -> None:
        """Record why the group ends; the first reason counts."""
        if not self.lost.done():
            self.lost.set_result(why)
        self.change()

    def close(self) -> None:
        """Close the bridge, and the connections after what was sent."""
        if self.bridge is not None:
            self.bridge.close()
        for peer in self.peers.values():
            peer.close()

    def space(self, peer: Peer, notice: Notice) -> Bytes:
        if self.bridge is None:
            raise ValueError("a notice before the ranks are there")
        return self.bridge.space(peer, notice)

    def on_notice(self, peer: Peer, notice: Notice) -> None:
        assert self.bridge is not None
        self.bridge.deliver(notice)

    def on_message(self, peer: Peer, message: FromMachine) -> None:
        if isinstance(message, Hello):
            if problem := version_mismatch(message, bridge_messages, "machine"):
                raise ValueError(problem)
        elif isinstance(message, Beats):
            if self.bridge is not None:  # else the ranks start
                self.bridge.take_beats(peer, message)
        else:
            raise ValueError(f"a {type(message).__name__}")

    def on_frame(self, peer: Peer, frame: bytes) -> None:
        raise ValueError("a frame of rank 0")

    def on_lost(self, peer: Peer, why: str) -> None:
        if self.peers.get(peer.machine) is peer:
            self.lose(f"{self.name_of(peer.machine)} is lost: {why}")
