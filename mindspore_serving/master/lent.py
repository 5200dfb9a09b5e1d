"""What lies in the arena of a worker: copied, or lent to whoever writes it out.  Sends nothing."""

from collections import deque
from functools import partial

from mindspore_serving.core.lending import lend
from mindspore_serving.ipc.arena import ArenaView, NoArena
from mindspore_serving.ipc.messages import Payload

MOST_LENT = 512 << 20  # bytes of one worker, that is, of clients which read slowly; then copies
# Whose answers are put together of views: any other takes copies, which it would make anyway.
LENT = frozenset({"v2_raw", "v2_json", "v2_both", "ms_proto"})


class Lent:
    """The payloads that a worker has sent, until it may forget them."""

    def __init__(self, view: ArenaView | NoArena) -> None:
        self._view = view
        self._num_lent = 0  # bytes; less what was returned since `take_freed`
        self._freed: deque[tuple[int, int]] = deque()  # offsets, and how much of it was lent

    @property
    def num_freed(self) -> int:
        """How many payloads the worker may forget."""
        return len(self._freed)

    def copy(self, payload: Payload) -> bytes:
        if isinstance(payload, bytes):
            return payload
        self._freed.append((payload.offset, 0))
        return bytes(self._view.get(payload))

    def lend(self, payload: Payload) -> "bytes | memoryview":
        """The bytes where they lie, which the worker may forget when nobody has them any more."""
        if isinstance(payload, bytes) or self._num_lent + payload.length > MOST_LENT:
            return self.copy(payload)
        data = self._view.get(payload)
        assert isinstance(data, memoryview)
        self._num_lent += payload.length
        # On any thread, so only what is safe there.
        return lend(data, partial(self._freed.append, (payload.offset, payload.length)))

    def take_freed(self) -> list[int]:
        """The offsets of what the worker may forget."""
        offsets = []
        while self._freed:
            offset, length = self._freed.popleft()
            self._num_lent -= length
            offsets.append(offset)
        return offsets
