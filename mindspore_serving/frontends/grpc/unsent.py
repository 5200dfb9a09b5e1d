"""Limit of the memory of gRPC answers that clients do not read.

grpcio tells when an answer is sent, and cannot drop one: so later answers are refused instead.  A
message that a front-end process passes on counts in that process until the client reads it, and in
the master until the front end does.
"""

from functools import partial
from typing import Any

from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.grpc.calls import abort
from mindspore_serving.frontends.memory import ANONYMOUS, MemoryPeer, Quota, peer_of
from mindspore_serving.frontends.message_reader import Context

SMALL = 4096  # bytes: the call itself uses more, so these are not counted


class UnsentReplies:
    """Answers that are not sent, of at most `limit` bytes, of which no client can use all."""

    def __init__(self, limit: int) -> None:
        self._quota = Quota(limit)
        self.counted_by_method: set[str] = set()  # paths of methods that call `take` themselves

    @property
    def num_bytes(self) -> int:
        """Bytes that are not sent."""
        return self._quota.used

    async def hold(self, context: Context, num_bytes: int) -> None:
        """Count an answer until it is sent or its client disconnects.

        Aborts the call if there is no room.
        """
        peer = await self.begin(context, num_bytes)
        end: Any = partial(self._end, peer, num_bytes)
        if num_bytes > SMALL:
            context.add_done_callback(end)

    async def begin(self, context: Context, num_bytes: int) -> MemoryPeer:
        """Count a message of a stream until `end` is called with the peer that this returns.

        Aborts the call if there is no room.
        """
        if num_bytes <= SMALL:
            return ANONYMOUS
        peer = peer_of(context.peer())
        try:
            self.take(peer, num_bytes)
        except Overloaded as error:
            await abort(context, error)
        return peer

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Count a message to `peer` until `end`.  Raises Overloaded if there is no room."""
        if num_bytes <= SMALL:
            return
        if not self._quota.take(peer, num_bytes):
            text = f"no memory for an answer of {num_bytes} bytes, as clients do not read others"
            raise Overloaded(f"{text} (max_unsent_memory)")

    def end(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Release a message to `peer` that is sent or dropped.

        It takes no context: context.peer() of an ended call crashes the process (grpcio 1.85).
        """
        if num_bytes > SMALL:
            self._quota.give_back(peer, num_bytes)

    def _end(self, peer: MemoryPeer, num_bytes: int, _: object) -> None:
        self.end(peer, num_bytes)
