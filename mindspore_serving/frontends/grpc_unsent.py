"""Answers of gRPC calls that clients do not take: what they take of memory together has a limit.

grpcio tells when an answer is sent, and cannot take one back: so the ones after it are refused.
A message of a call that a front-end process passes on counts in both: there until the client takes
it, and those behind it in the master until the front end does.
"""

from collections import Counter
from functools import partial
from typing import Any

from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.grpc_calls import abort
from mindspore_serving.frontends.message_reader import Context

SMALL = 4096  # bytes: the call itself takes more


class UnsentReplies:
    """`held` of at most `most` bytes; each connection may have as much as it leaves to others, so
    that none takes all.  The only one has what it needs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[str] = Counter()  # bytes by connection
        self.held = 0
        self.counted_by_method: set[str] = set()  # paths of methods that `take` for themselves

    async def hold(self, context: Context, num_bytes: int) -> None:
        """An answer of so many bytes, until it is sent or its client has left.  Ends the call if
        there is no room."""
        peer = await self.begin(context, num_bytes)
        end: Any = partial(self._end, peer, num_bytes)
        if peer:
            context.add_done_callback(end)

    async def begin(self, context: Context, num_bytes: int) -> str:
        """As `hold`, until `end`: a message of a stream.  Gives whose it is."""
        if num_bytes <= SMALL:
            return ""
        peer = context.peer()
        try:
            self.take(peer, num_bytes)
        except Overloaded as error:
            await abort(context, error)
        return peer

    def take(self, peer: str, num_bytes: int) -> None:
        """For a message to `peer`, until `end`.  Raises Overloaded if there is no room."""
        if num_bytes <= SMALL:
            return
        after = self._of[peer] + num_bytes
        if self.held and after > self._most - self.held:
            text = f"no memory for an answer of {num_bytes} bytes, as others are not taken"
            raise Overloaded(f"{text} (max_unsent_memory)")
        self._of[peer] = after
        self.held += num_bytes

    def end(self, peer: str, num_bytes: int) -> None:
        """A message to `peer` is sent, or nobody wants it.  Not the context is given: asking one
        whose call has ended for its peer ends this process (grpcio 1.85)."""
        if num_bytes <= SMALL:
            return
        self.held -= num_bytes
        self._of[peer] -= num_bytes
        if not self._of[peer]:
            del self._of[peer]

    def _end(self, peer: str, num_bytes: int, _: object) -> None:
        self.end(peer, num_bytes)
