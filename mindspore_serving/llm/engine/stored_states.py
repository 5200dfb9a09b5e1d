"""States of sequences in the levels of the prefix cache, in pieces that are as large as a block.

A level has values of one size, and a state may be larger or smaller than a block.  The states that
prompts leave at the end of blocks are stored, not those of answers: each answer would write one
with every block.  Knows no level.
"""

from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b

from mindspore_serving.llm.engine.states import StatePool
from mindspore_serving.llm.engine.stored_levels import BlockRead
from mindspore_serving.llm.step import StatefulRunner
from mindspore_serving.llm.storage.block_level import BlockLevel

MAX_CANDIDATES = 32  # blocks of a prompt, from its end on, behind which a state is looked for


class StoredStates:
    """Snapshots of `states`, whose contents `runner` has, by the hashes of their blocks."""

    def __init__(self, runner: StatefulRunner, states: StatePool) -> None:
        self._runner, self._states = runner, states
        self._piece_bytes = runner.block_bytes
        self.num_pieces = -(-runner.state_bytes // runner.block_bytes)
        self._snapshots: dict[bytes, tuple[bytes, int]] = {}  # hash and index, by piece
        self._last: tuple[bytes, list[memoryview]] = (b"", [])  # hash and state that was read last

    def pieces(self, digest: bytes) -> list[bytes]:
        """Return the hashes of the pieces of the state behind the block with the hash `digest`."""
        return [
            blake2b(
                b"state" + index.to_bytes(4, "little") + digest, digest_size=len(digest)
            ).digest()
            for index in range(self.num_pieces)
        ]

    def add(self, digest: bytes) -> list[bytes]:
        """Note that there is a state to store; return its pieces."""
        pieces = self.pieces(digest)
        self._snapshots.update((piece, (digest, index)) for index, piece in enumerate(pieces))
        return pieces

    def remove(self, digest: bytes) -> None:
        """Forget a state, which is evicted."""
        for piece in self.pieces(digest):
            self._snapshots.pop(piece, None)

    def hashes(self) -> Iterator[bytes]:
        """Iterate over the hashes of the pieces of all states that are in memory."""
        for digest in self._states.pool.hashes():
            yield from self.pieces(digest)

    def read(self, piece: bytes) -> memoryview | None:
        """Return the contents of a piece, padded; None if its state is not in memory."""
        digest, index = self._snapshots.get(piece, (b"", 0))
        if not self._states.pool.find([digest]):
            return None
        if self._last[0] != digest:
            self._last = digest, self.snapshot(digest)
        return self._last[1][index]

    def snapshot(self, digest: bytes) -> list[memoryview]:
        """Return a copy of a state, in pieces, the last one padded; [] if it is not in memory."""
        slots = self._states.pool.find([digest])
        if not slots:
            return []
        size = self._piece_bytes
        content = bytes(self._runner.read_state(slots[0])).ljust(self.num_pieces * size, b"\0")
        return [memoryview(content)[begin : begin + size] for begin in range(0, len(content), size)]

    def restore(self, digest: bytes, pieces: list[memoryview]) -> bool:
        """Restore a state, which may be evicted again; return False if sequences need all slots."""
        pool = self._states.pool
        if pool.find([digest]):
            return True
        if pool.num_free <= self._states.max_running:
            return False
        slot = pool.allocate()
        content = b"".join(pieces)[: self._runner.state_bytes]
        self._runner.write_state(slot, memoryview(bytearray(content)))
        pool.register(slot, digest)
        pool.free([slot])
        return True


class StateSearches:
    """Searches for the last states that a level has of prompts, one prompt after the other.

    Of a prompt the state behind its last block is requested first, by its first piece, then that
    behind the block before it.

    Args:
        states: takes the state.
        request: requests a piece from a level, or from one below a level; returns whether it may
            have it.
        on_end: called with the block of the state that was restored, or with b"".
    """

    def __init__(
        self,
        states: StoredStates,
        request: Callable[[BlockRead, bytes, BlockLevel | None], bool],
        on_end: Callable[[BlockRead, bytes], None],
    ) -> None:
        self._states, self._request, self._on_end = states, request, on_end
        self._queue: deque[BlockRead] = deque()  # the first one is searched
        self._candidates: list[bytes] = []  # blocks behind which a state may be; the last is next
        self._digest = b""  # the block whose state is requested
        self._pieces: dict[bytes, memoryview | None] = {}  # of this state
        self._awaited: set[bytes] = set()

    def add(self, reading: BlockRead) -> None:
        """Search for a state of a prompt, and read its blocks afterwards."""
        self._queue.append(reading)
        if len(self._queue) == 1:
            self._begin()

    def remove(self, reading: BlockRead) -> None:
        """Search no longer."""
        if reading not in self._queue:
            return
        is_first = self._queue[0] is reading
        self._queue.remove(reading)
        if is_first:
            self._awaited.clear()
            self._begin()

    def has(self, piece: bytes) -> bool:
        """Return whether a piece is awaited."""
        return piece in self._awaited

    def accept(self, level: BlockLevel, piece: bytes, content: memoryview | None) -> None:
        """Take a piece that a level has read; None if it has none."""
        reading = self._queue[0]
        if content is None:
            if not (self._request(reading, piece, level) or self._requests_next()):
                self._end(b"")
            return
        self._awaited.discard(piece)
        self._pieces[piece] = content
        missing = [piece for piece, content in self._pieces.items() if content is None]
        if not missing:
            contents = [content for content in self._pieces.values() if content is not None]
            is_restored = self._states.restore(self._digest, contents)
            self._end(self._digest if is_restored else b"")
        elif not (self._awaited or self._requests(missing) or self._requests_next()):
            self._end(b"")

    def _begin(self) -> None:
        """Search for a state of the first prompt; of those after it, if levels have none."""
        while self._queue:
            self._candidates = self._queue[0].digests[-MAX_CANDIDATES:]
            if self._requests_next():
                return
            self._on_end(self._queue.popleft(), b"")

    def _requests_next(self) -> bool:
        """Request the state of the next candidate; return whether a level may have it."""
        self._awaited.clear()
        while self._candidates:
            self._digest = self._candidates.pop()
            self._pieces = dict.fromkeys(self._states.pieces(self._digest))
            if self._requests(list(self._pieces)[:1]):
                return True
        return False

    def _requests(self, pieces: list[bytes]) -> bool:
        """Request pieces of the first prompt; return whether levels may have all of them."""
        self._awaited = set(pieces)
        return all(self._request(self._queue[0], piece, None) for piece in pieces)

    def _end(self, digest: bytes) -> None:
        self._on_end(self._queue.popleft(), digest)
        self._begin()
