"""Slots for the state of a sequence, in models that remember more than keys and values.

A slot holds the whole state of a sequence after some token, so it is overwritten as the text goes
on, where blocks only fill.  A step with draft tokens writes two slots: the state before the draft
tokens, and that behind the last.  If some are rejected, the sequence continues from the former, and
the next step computes the accepted ones again.  States at the end of blocks are kept as snapshots,
registered under the block's hash: such a slot is never written again, and its sequence continues in
another slot.  A prompt with the same prefix shares keys and values up to the last block whose state
is kept.

Integers and hashes only: the contents belong to the runner.
"""

import sys
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence, SequenceStatus
from mindspore_serving.llm.step import Row, StateSlots


class NoStates:
    """Null object for models with keys and values only: no slots, no limits."""

    max_running = sys.maxsize

    def find(self, sequence: Sequence, limit: int) -> int:
        return limit

    def num_shared(self, digests: SequenceOf[bytes]) -> int:
        return len(digests)

    def begin(self, sequence: Sequence, num_shared: int) -> None: ...

    def share(self, parent: Sequence, child: Sequence) -> None: ...

    def assign(self, sequence: Sequence, num_new: int) -> None: ...

    def fit_draft(self, sequence: Sequence, count: int) -> int:
        return count

    def keep_snapshots(self, scheduled: Scheduled) -> None: ...

    def release(self, sequence: Sequence) -> None: ...

    def allocate(self) -> list[int]:
        return []

    def free(self, slots: list[int]) -> None: ...


class StatePool:
    """Allocator of the slots 0 .. num_slots-1.

    In a step a sequence reads one slot and writes one, so at most `max_running` run; the remaining
    slots keep snapshots.  One slot is reserved for `allocate`.
    """

    def __init__(self, num_slots: int, block_size: int, *, keeps_snapshots: bool) -> None:
        self.pool = BlockPool(num_slots)
        self.max_running = max(1, (num_slots - 1) // 2)
        self._block_size = block_size
        self._keeps_snapshots = keeps_snapshots
        # Called with the hash of a block behind which a prompt has left a state.
        self.on_keep: Callable[[bytes], None] | None = None

    def find(self, sequence: Sequence, limit: int) -> int:
        """Return how many of the first `limit` blocks of `sequence` it may share.

        These end at the last block whose state is kept.  If there are more, the state at their end
        is to be kept this time (`Sequence.snapshot_after`).
        """
        count = self.num_shared(sequence.hash_blocks(limit, self._block_size))
        sequence.snapshot_after = limit * self._block_size if count < limit else 0
        return count

    def num_shared(self, digests: SequenceOf[bytes]) -> int:
        """Return how many of the blocks `digests`, from the first, end at a state that is kept."""
        count = len(digests)
        while count and not self.pool.find(digests[count - 1 : count]):
            count -= 1
        return count

    def begin(self, sequence: Sequence, num_shared: int) -> None:
        """Start `sequence` from the state behind its first `num_shared` blocks (see `find`)."""
        hashes = sequence.hash_blocks(num_shared, self._block_size)
        sequence.slots = self.pool.find(hashes[-1:])
        self.pool.share(sequence.slots)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Start `child` from the state of `parent`."""
        child.slots = parent.slots[:]
        self.pool.share(child.slots)

    def assign(self, sequence: Sequence, num_new: int) -> StateSlots:
        """Return the slots that a step of `sequence` with `num_new` tokens reads and writes."""
        pool, slots = self.pool, sequence.slots
        read = slots[0] if slots else -1
        write = read
        if read < 0 or pool.users[read] > 1 or pool.is_registered(read):
            write = pool.allocate()
            slots.append(write)
        if num_new > sequence.num_left:
            slots.append(pool.allocate())
            return StateSlots(read, slots[-1], write, sequence.num_left)
        end = sequence.num_computed + num_new
        kept = (end - 1) // self._block_size * self._block_size - sequence.num_computed
        if not self._keeps_snapshots or kept <= 0 or pool.num_free <= self.max_running:
            return StateSlots(read, write)
        # The snapshot may overwrite the slot that is read; the last state gets a new slot.
        slots.append(pool.allocate())
        return StateSlots(read, slots[-1], write, kept)

    def fit_draft(self, sequence: Sequence, count: int) -> int:
        """Return how many of `count` draft tokens leave states that have slots.

        They end at the end of a block at the latest, as the state there is kept.
        """
        read = sequence.slots[0]
        is_shared = self.pool.users[read] > 1 or self.pool.is_registered(read)
        if is_shared and self.pool.num_free <= self.max_running:
            return 0
        rest = -len(sequence.tokens) % self._block_size or self._block_size
        return min(count, rest) if self._keeps_snapshots else count

    def keep_snapshots(self, scheduled: Scheduled) -> None:
        """Keep the states that the computed step `scheduled` left at the end of blocks."""
        for sequence, row in zip(scheduled.sequences, scheduled.step.rows, strict=True):
            if sequence.status is SequenceStatus.RUNNING:
                self._keep_snapshots(sequence, row)

    def release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.slots)
        sequence.slots = []

    def allocate(self) -> list[int] | None:
        """Return a slot for a text that is no sequence, to `free` later; None if none is left."""
        return [self.pool.allocate()] if self.pool.num_free > self.max_running else None

    def free(self, slots: list[int]) -> None:
        self.pool.free(slots)

    def _keep_snapshots(self, sequence: Sequence, row: Row) -> None:
        """Register the states that the step left in slots, and free the slots no longer needed."""
        state = row.state
        assert state is not None
        is_complete = sequence.num_computed == row.start + len(row.tokens)
        slot = state.write if is_complete else state.snapshot
        is_draft = row.num_logits == len(row.tokens) - state.kept + 1
        if state.snapshot not in (-1, slot) and not is_draft:
            self._note(self._keep(sequence, state.snapshot, row.start + state.kept))
        if self._keeps_snapshots and sequence.num_computed % self._block_size == 0:
            digest = self._keep(sequence, slot, sequence.num_computed)
            if len(row.tokens) == 1 or is_draft:  # one snapshot per decoding sequence is enough
                self.pool.drop(sequence.kept)
                sequence.kept = digest if self.pool.is_registered(slot) else b""
            else:
                self._note(digest)
        self.pool.free([other for other in sequence.slots if other != slot])
        sequence.slots = [slot]

    def _note(self, digest: bytes) -> None:
        if self.on_keep is not None:
            self.on_keep(digest)

    def _keep(self, sequence: Sequence, slot: int, length: int) -> bytes:
        digest = sequence.hash_blocks(length // self._block_size, self._block_size)[-1]
        self.pool.register(slot, digest)
        return digest
