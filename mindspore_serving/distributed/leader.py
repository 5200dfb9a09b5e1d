"""The worker's side of a gang: the server for scripts and agents, and the life of the gang.

Lives on an event loop.  Has the connections, the clock and the waiting; `gang` and `stages` decide
what is valid.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.aio import within
from mindspore_serving.cluster.pending_connections import PendingConnections
from mindspore_serving.distributed.gang import Gang
from mindspore_serving.distributed.messages import (
    JoinGang,
    Plan,
    Proof,
    Ran,
    Take,
    ToGang,
    to_signatures,
)
from mindspore_serving.distributed.peer import CLOSE_SECONDS, MAX_REASON, GangPeer
from mindspore_serving.distributed.predictions import Predictions
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.ipc.messages import AgentAddress
from mindspore_serving.process.vocabulary import Beat, Exit, Failed, Ready

MAX_PENDING = 256  # connections that have not authenticated; one more closes the oldest
GREETING_SECONDS = 10.0  # timeout of authentication

OnBroken: TypeAlias = Callable[[str], None]
"""A callback that gets the reason."""


class Leader:
    """The server of one gang, from its first rank to its end.

    `on_broken` is called with the reason if a complete gang loses a rank; all predictions have
    failed and all connections are closed by then.
    """

    def __init__(
        self,
        gang: Gang,
        plan: Plan,
        secret: bytes,
        on_broken: OnBroken,
        *,
        timeout: float,
        limit: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Create the server without listening.

        Args:
            gang: the ranks.
            plan: sent to scripts and agents.
            secret: the token, b"" for none.
            on_broken: see above.
            timeout: seconds without a heartbeat after which a rank is lost; 0: unlimited.
            limit: seconds for a prediction after which its ranks are lost; 0: unlimited.
            context: None without TLS.
        """
        self.gang = gang
        self._plan = plan
        self._secret = secret
        self._context = context
        self._timeout = timeout
        self._on_broken = on_broken
        self._peers: set[GangPeer] = set()
        self._pending = PendingConnections(MAX_PENDING)
        self._agents: dict[int, GangPeer] = {}
        self._pids: dict[int, int] = {}  # of agents, by rank
        self._end = ""  # the reason why the gang has ended
        self.predictions = Predictions(gang, self._agents, self._break, limit)
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    # --- life of the gang ---------------------------------------------------------------------

    async def open(self, host: str, port: int) -> None:
        """Listen at an address.  Raises StartError if it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: GangPeer(self, self._secret, self._context), host, port, reuse_address=True
            )
        except OSError as error:
            raise StartError(
                f"Serving Error: Distributed server start failed, bind to the socket address "
                f"{host}:{port} failed: {error}"
            ) from error
        self._watch = loop.create_task(self._look())

    async def gather(self, seconds: float) -> None:
        """Wait until all ranks have joined.

        Raises StartError after `seconds` (0: unlimited), or if a script reports a failure.
        """
        try:
            await within(seconds or None, asyncio.shield(self._complete))
        except asyncio.TimeoutError:
            missing = ", ".join(map(str, self.gang.missing))
            text = f"agents of ranks {missing} have not joined within {seconds:g} s"
            self._close(text)
            raise StartError(text) from None

    async def stop(self) -> None:
        """Send `Exit` to all scripts and agents, close the gang, and wait for their ends."""
        for peer in self._peers:
            peer.send(Exit())
        self._close("the servable is stopped")
        if self._peers:
            await asyncio.wait([peer.lost for peer in self._peers], timeout=CLOSE_SECONDS)

    def _break(self, reason: str) -> None:
        if self._end:
            return
        was_complete = self._complete.done()
        self._close(reason)
        if was_complete:
            self._on_broken(reason)

    def _close(self, reason: str) -> None:
        """Fail all predictions with `reason`, and close all connections."""
        self._end = self._end or reason
        if not self._complete.done():
            self._complete.set_exception(StartError(reason))
            self._complete.exception()  # nobody may await it any more
        self.predictions.fail(reason)
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()
        for peer in list(self._peers):
            peer.close()

    @property
    def agents(self) -> list[AgentAddress]:
        """The machine, device and process of each rank of a complete gang."""
        return [
            AgentAddress(rank.number, rank.ip, rank.device_id, self._pids[rank.number])
            for rank in self.gang.ranks
        ]

    # --- peers ----------------------------------------------------------------------------------

    def on_opened(self, peer: GangPeer) -> None:
        """Handle a new connection."""
        self._peers.add(peer)
        refuse = partial(peer.refuse, f"{MAX_PENDING} newer connections have not authenticated yet")
        self._pending.add(peer, peer.address, refuse)

    def on_message(self, peer: GangPeer, message: ToGang) -> None:
        """Handle a message.  Raises InvalidInputs if it is refused."""
        if self._end:
            return
        if isinstance(message, Ran) and peer.rank is not None:
            self.predictions.on_ran(peer.rank, message)
        elif isinstance(message, JoinGang):
            self._join(peer, message)
        elif isinstance(message, Take):
            self.gang.take(peer, message.ranks)
            peer.send(Ready())
        elif isinstance(message, Proof):
            self._pending.discard(peer)
            peer.send(self._plan)
        elif isinstance(message, Failed):
            if not self.gang.is_complete:
                self._break(message.text[:MAX_REASON])
        elif not isinstance(message, Beat):
            raise InvalidInputs("an agent has to join before it answers")

    def _join(self, peer: GangPeer, message: JoinGang) -> None:
        if peer.rank is not None:
            raise InvalidInputs(f"this agent has joined as rank {peer.rank} already")
        self.gang.join(message.rank, to_signatures(message.graphs))
        peer.rank = message.rank
        peer.expect_tensors()
        self._agents[message.rank] = peer
        self._pids[message.rank] = message.pid
        peer.send(Ready())
        log.info("rank %d has joined %s", message.rank, self.gang.name)
        if self.gang.is_complete:
            self._complete.set_result(None)

    def on_closed(self, peer: GangPeer) -> None:
        """Handle the end of a connection: the gang ends if it was complete."""
        self._peers.discard(peer)
        self._pending.discard(peer)
        if self._end:
            return
        if peer.rank is not None:
            del self._agents[peer.rank]
            if self.gang.is_complete:
                self._break(f"the agent of rank {peer.rank} {peer.why or 'has ended'}")
            self.gang.leave(peer.rank)
            return
        joined = self.gang.release(peer)
        if joined and self.gang.is_complete:
            ranks = ", ".join(map(str, joined))
            self._break(f"the script that started the agents of ranks {ranks} has ended")

    # --- time -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Check periodically for peers that are silent or do not authenticate."""
        loop = asyncio.get_running_loop()
        seconds = min(1.0, self._timeout / 4) if self._timeout else 1.0
        last = loop.time()
        while True:
            await asyncio.sleep(seconds)
            # If this process was stopped for a while, the peers are not to blame.
            elapsed, last = min(loop.time() - last, 2 * seconds), loop.time()
            for peer in list(self._peers):
                peer.silent_for += elapsed
                self._check_silence(peer)

    def _check_silence(self, peer: GangPeer) -> None:
        if not peer.is_authenticated and peer.silent_for >= GREETING_SECONDS:
            peer.dismiss()
        elif peer.rank is not None and 0 < self._timeout <= peer.silent_for:
            text = f"was silent for {peer.silent_for:.0f} s"
            if self.gang.is_complete:
                self._break(f"the agent of rank {peer.rank} {text}")
            else:
                peer.abort()
