"""Payloads in the arena of a worker: copied, or lent to the code that writes them to a socket.

It sends no messages.
"""

from collections import deque
from functools import partial

from mindspore_serving.core.lending import lend
from mindspore_serving.ipc.arena import ArenaView, NoArena
from mindspore_serving.ipc.messages import Payload

MAX_LENT = 512 << 20  # bytes lent per worker, to clients that read slowly; beyond, it copies
# Codecs that write replies from views.  Any other codec gets copies, which it would make anyway.
ZERO_COPY_CODECS = frozenset({"v2_raw", "v2_json", "v2_both", "ms_proto", "native"})


class PayloadLender:
    """Payloads of one worker, until the worker can reuse their memory."""

    def __init__(self, view: ArenaView | NoArena) -> None:
        self._view = view
        self._num_lent = 0  # bytes; less what was returned since `take_freed`
        self._freed: deque[tuple[int, int]] = deque()  # offsets, and lengths that were lent

    @property
    def num_freed(self) -> int:
        """Number of payloads whose memory the worker can reuse."""
        return len(self._freed)

    def copy(self, payload: Payload) -> bytes:
        if isinstance(payload, bytes):
            return payload
        self._freed.append((payload.offset, 0))
        return bytes(self._view.get(payload))

    def lend(self, payload: Payload) -> "bytes | memoryview":
        """Return the bytes without a copy; their memory is freed when no reference is left."""
        if isinstance(payload, bytes) or self._num_lent + payload.length > MAX_LENT:
            return self.copy(payload)
        data = self._view.get(payload)
        assert isinstance(data, memoryview)
        self._num_lent += payload.length
        # `lend` appends on any thread, maybe in a finalizer: only deque.append is safe there.
        return lend(data, partial(self._freed.append, (payload.offset, payload.length)))

    def take_freed(self) -> list[int]:
        """Return the offsets of payloads whose memory the worker can reuse."""
        offsets = []
        while self._freed:
            offset, length = self._freed.popleft()
            self._num_lent -= length
            offsets.append(offset)
        return offsets
