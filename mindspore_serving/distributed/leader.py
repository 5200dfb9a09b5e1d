"""The worker's side of a gang: listens for scripts and agents, sends them predictions, ends them.

Lives on an event loop.  What is right is decided by `gang` and `stages`; here are the connections,
the clock and the waiting.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.cluster.strangers import Strangers
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
from mindspore_serving.distributed.peer import MOST_WORDS, GangPeer
from mindspore_serving.distributed.predictions import Predictions
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.ipc.messages import AgentAddress
from mindspore_serving.process.vocabulary import Beat, Exit, Failed, Ready

MOST_UNKNOWN = 256  # connections that have not proved the token; the oldest gives way
GREETING = 10.0  # seconds that they have for it

OnBroken: TypeAlias = Callable[[str], None]
"""Gets the reason."""


class Leader:
    """Leads one gang from its first rank to its end.  `on_broken` is called with the reason when a
    complete gang has lost a rank: everything is answered and closed then.
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
        """A rank without a sign of life for `timeout` seconds is lost, and one that works on a
        prediction for `limit` seconds; 0 for never.  `context` is None without TLS.
        """
        self.gang = gang
        self._plan = plan
        self._secret = secret
        self._context = context
        self._timeout = timeout
        self._on_broken = on_broken
        self._peers: set[GangPeer] = set()
        self._strangers = Strangers(MOST_UNKNOWN)
        self._agents: dict[int, GangPeer] = {}
        self._pids: dict[int, int] = {}  # of agents, by rank
        self._end = ""  # why there is no gang any more
        self.predictions = Predictions(gang, self._agents, self._break, limit)
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    # --- its life -----------------------------------------------------------------------------

    async def open(self, host: str, port: int) -> None:
        """Listen.  Raises StartError if the address cannot be bound."""
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
        """Wait until all ranks have joined, at most `seconds` unless that is 0.  Raises
        StartError.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._complete), seconds or None)
        except asyncio.TimeoutError:
            missing = ", ".join(map(str, self.gang.missing))
            text = f"agents of ranks {missing} have not joined within {seconds:g} s"
            self._close(text)
            raise StartError(text) from None

    async def stop(self) -> None:
        """Tell all that it is over."""
        for peer in self._peers:
            peer.send(Exit())
        self._close("the servable is stopped")

    def _break(self, reason: str) -> None:
        if self._end:
            return
        was_complete = self._complete.done()
        self._close(reason)
        if was_complete:
            self._on_broken(reason)

    def _close(self, reason: str) -> None:
        """Answer everything with `reason`, and close everything."""
        self._end = self._end or reason
        if not self._complete.done():
            self._complete.set_exception(StartError(reason))
            self._complete.exception()  # it may have no reader any more
        self.predictions.fail(reason)
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()
        for peer in list(self._peers):
            peer.close()

    @property
    def agents(self) -> list[AgentAddress]:
        """Where the ranks of a complete gang run."""
        return [
            AgentAddress(rank.number, rank.ip, rank.device_id, self._pids[rank.number])
            for rank in self.gang.ranks
        ]

    # --- peers ----------------------------------------------------------------------------------

    def on_opened(self, peer: GangPeer) -> None:
        self._peers.add(peer)
        refuse = partial(peer.refuse, "too many newer connections wait")
        self._strangers.add(peer, peer.address, refuse)

    def on_message(self, peer: GangPeer, message: ToGang) -> None:
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
            self._strangers.discard(peer)
            peer.send(self._plan)
        elif isinstance(message, Failed):
            if not self.gang.is_complete:
                self._break(message.text[:MOST_WORDS])
        elif not isinstance(message, Beat):
            raise InvalidInputs("an agent sends Join before it answers")

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
        self._peers.discard(peer)
        self._strangers.discard(peer)
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
        """Every now and then: who is silent, and who does not greet."""
        loop = asyncio.get_running_loop()
        seconds = min(1.0, self._timeout / 4) if self._timeout else 1.0
        last = loop.time()
        while True:
            await asyncio.sleep(seconds)
            # If we were stopped ourselves for a while, the others are not to blame.
            elapsed, last = min(loop.time() - last, 2 * seconds), loop.time()
            for peer in list(self._peers):
                peer.silent_for += elapsed
                self._judge(peer)

    def _judge(self, peer: GangPeer) -> None:
        if not peer.is_known and peer.silent_for >= GREETING:
            peer.dismiss()
        elif peer.rank is not None and 0 < self._timeout <= peer.silent_for:
            text = f"gave no sign of life for {peer.silent_for:.0f} s"
            if self.gang.is_complete:
                self._break(f"the agent of rank {peer.rank} {text}")
            else:
                peer.abort()
