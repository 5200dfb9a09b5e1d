"""Slots for what a sequence remembers beside keys and values: the second kind of cache.

A slot has the whole state of a sequence after some token, so it is overwritten as the text goes
on, where blocks only fill.  States at the end of blocks are kept, under the block's hash: such a
slot is never written again, its sequence goes on in another.  A prompt that begins alike takes keys
and values up to the last block whose state is kept.

Integers and hashes only: the contents belong to the runner.
"""

import sys

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence, SequenceStatus
from mindspore_serving.llm.step import Row, StateSlots


class NoStates:
    """Of a model that remembers keys and values alone: any number runs, shares every block, and
    has no slots.
    """

    max_running = sys.maxsize

    def find(self, sequence: Sequence, most: int) -> int:
        return most

    def begin(self, sequence: Sequence, num_shared: int) -> None: ...

    def share(self, parent: Sequence, child: Sequence) -> None: ...

    def place(self, sequence: Sequence, num_new: int) -> None: ...

    def settle(self, scheduled: Scheduled) -> None: ...

    def give_back(self, sequence: Sequence) -> None: ...

    def take(self) -> list[int]:
        return []

    def free(self, slots: list[int]) -> None: ...


class StatePool:
    """Hands out slots 0 .. num_slots-1.  In a step a sequence has one to read and one to write, so
    at most `max_running` run; what is left keeps states.  One slot is for `take`.
    """

    def __init__(self, num_slots: int, block_size: int, *, keeps: bool) -> None:
        self.pool = BlockPool(num_slots)
        self.max_running = max(1, (num_slots - 1) // 2)
        self._block_size = block_size
        self._keeps = keeps

    def find(self, sequence: Sequence, most: int) -> int:
        """How many of the first `most` blocks of `sequence` may be shared: up to the last one whose
        state is kept.  Where there are more, a state is to be kept at their end this time.
        """
        hashes = sequence.hash_blocks(most, self._block_size)
        count = most
        while count and not self.pool.find(hashes[count - 1 : count]):
            count -= 1
        sequence.branch = most * self._block_size if count < most else 0
        return count

    def begin(self, sequence: Sequence, num_shared: int) -> None:
        """Let `sequence` go on after its first `num_shared` blocks, whose state `find` has seen."""
        hashes = sequence.hash_blocks(num_shared, self._block_size)
        sequence.slots = self.pool.find(hashes[-1:])
        self.pool.share(sequence.slots)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on from the state of `parent`."""
        child.slots = parent.slots[:]
        self.pool.share(child.slots)

    def place(self, sequence: Sequence, num_new: int) -> StateSlots:
        """Where the next step of `sequence`, of `num_new` tokens, reads and writes."""
        pool, slots = self.pool, sequence.slots
        read = slots[0] if slots else -1
        write = read
        if read < 0 or pool.users[read] > 1 or pool.is_registered(read):
            write = pool.allocate()
            slots.append(write)
        end = sequence.num_computed + num_new
        kept = (end - 1) // self._block_size * self._block_size - sequence.num_computed
        if not self._keeps or kept <= 0 or pool.num_free <= self.max_running:
            return StateSlots(read, write)
        # Of the two states that are written, a runner may write the first over what it reads.
        slots.append(pool.allocate())
        return StateSlots(read, slots[-1], write, kept)

    def settle(self, scheduled: Scheduled) -> None:
        """Keep the states that `scheduled`, which is computed, left at the end of blocks."""
        for sequence, row in zip(scheduled.sequences, scheduled.step.rows, strict=True):
            if sequence.status is SequenceStatus.RUNNING:
                self._settle(sequence, row)

    def give_back(self, sequence: Sequence) -> None:
        self.pool.free(sequence.slots)
        sequence.slots = []

    def take(self) -> list[int] | None:
        """A slot for a text that is no sequence, until it is freed; None if there is no room."""
        return [self.pool.allocate()] if self.pool.num_free > self.max_running else None

    def free(self, slots: list[int]) -> None:
        self.pool.free(slots)

    def _settle(self, sequence: Sequence, row: Row) -> None:
        state = row.state
        assert state is not None
        if state.snapshot >= 0:
            self._keep(sequence, state.snapshot, row.start + state.kept)
        if self._keeps and sequence.num_computed % self._block_size == 0:
            digest = self._keep(sequence, state.write, sequence.num_computed)
            if len(row.tokens) == 1:  # one of each text that decodes is enough
                self.pool.drop(sequence.kept)
                sequence.kept = digest if self.pool.is_registered(state.write) else b""
        self.pool.free([slot for slot in sequence.slots if slot != state.write])
        sequence.slots = [state.write]

    def _keep(self, sequence: Sequence, slot: int, length: int) -> bytes:
        digest = sequence.hash_blocks(length // self._block_size, self._block_size)[-1]
        self.pool.register(slot, digest)
        return digest
