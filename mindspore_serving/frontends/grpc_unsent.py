"""Answers of gRPC calls that clients do not take: what they take of memory together has a limit.

grpcio tells when an answer is sent, and cannot take one back: so the ones after it are refused.
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

    async def hold(self, context: Context, num_bytes: int) -> None:
        """An answer of so many bytes, until it is sent or its client has left.  Ends the call if
        there is no room."""
        if num_bytes <= SMALL:
            return
        peer = context.peer()
        after = self._of[peer] + num_bytes
        if self.held and after > self._most - self.held:
            text = f"no memory for an answer of {num_bytes} bytes, as others are not taken"
            await abort(context, Overloaded(f"{text} (max_unsent_memory)"))
        self._of[peer] = after
        self.held += num_bytes
        remove: Any = partial(self._remove, peer, num_bytes)
        context.add_done_callback(remove)

    def _remove(self, peer: str, num_bytes: int, _: object) -> None:
        self.held -= num_bytes
        self._of[peer] -= num_bytes
        if not self._of[peer]:
            del self._of[peer]
