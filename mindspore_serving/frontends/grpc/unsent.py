"""Answers of gRPC calls that clients do not take: what they take of memory together has a limit.

grpcio tells when an answer is sent, and cannot take one back: so the ones after it are refused.
A message of a call that a front-end process passes on counts in both: there until the client takes
it, and those behind it in the master until the front end does.
"""

from functools import partial
from typing import Any

from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.grpc.calls import abort
from mindspore_serving.frontends.memory import NOBODY, MemoryPeer, Quota, peer_of
from mindspore_serving.frontends.message_reader import Context

SMALL = 4096  # bytes: the call itself takes more


class UnsentReplies:
    """At most `most` bytes, of which no client takes all."""

    def __init__(self, most: int) -> None:
        self._quota = Quota(most)
        self.counted_by_method: set[str] = set()  # paths of methods that `take` for themselves

    @property
    def held(self) -> int:
        """Bytes that are not taken."""
        return self._quota.held

    async def hold(self, context: Context, num_bytes: int) -> None:
        """An answer of so many bytes, until it is sent or its client has left.  Ends the call if
        there is no room.
        """
        peer = await self.begin(context, num_bytes)
        end: Any = partial(self._end, peer, num_bytes)
        if num_bytes > SMALL:
            context.add_done_callback(end)

    async def begin(self, context: Context, num_bytes: int) -> MemoryPeer:
        """As `hold`, until `end`: a message of a stream.  Gives whose it is."""
        if num_bytes <= SMALL:
            return NOBODY
        peer = peer_of(context.peer())
        try:
            self.take(peer, num_bytes)
        except Overloaded as error:
            await abort(context, error)
        return peer

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """For a message to `peer`, until `end`.  Raises Overloaded if there is no room."""
        if num_bytes <= SMALL:
            return
        if not self._quota.take(peer, num_bytes):
            text = f"no memory for an answer of {num_bytes} bytes, as others are not taken"
            raise Overloaded(f"{text} (max_unsent_memory)")

    def end(self, peer: MemoryPeer, num_bytes: int) -> None:
        """A message to `peer` is sent, or nobody wants it.  Not the context is given: asking one
        whose call has ended for its peer ends this process (grpcio 1.85).
        """
        if num_bytes > SMALL:
            self._quota.give_back(peer, num_bytes)

    def _end(self, peer: MemoryPeer, num_bytes: int, _: object) -> None:
        self.end(peer, num_bytes)
