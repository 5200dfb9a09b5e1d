"""Which cached blocks there will be soon: those of prompts that are being computed, and those that
are being read from disk.

A prompt that could share such a block waits for it, if the other one is as urgent.
"""

from collections.abc import Container

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence


class ComingBlocks:
    """For one step's admissions: the blocks that running sequences have not computed yet and `pool`
    does not have, and those in `reading`."""

    def __init__(self, pool: BlockPool, block_size: int, reading: Container[bytes] = ()) -> None:
        self._pool = pool
        self._block_size = block_size
        self._reading = reading
        self._priorities: dict[bytes, int] = {}  # by hash: of the most urgent that computes it

    def expect(self, sequence: Sequence) -> None:
        """`sequence` runs, less urgent than those before it or as they are."""
        if not sequence.is_decoding:
            full = len(sequence.tokens) // self._block_size
            hashes = sequence.hash_blocks(full, self._block_size)
            for digest in hashes[sequence.num_registered :]:
                self._priorities.setdefault(digest, sequence.order[0])

    def has_next_of(self, sequence: Sequence) -> bool:
        """Whether the first block of `sequence` that the pool does not have comes soon."""
        if not self._priorities and not self._reading:
            return False
        hashes = sequence.hash_known(self._block_size)
        missing = hashes[len(self._pool.find(hashes)) :]
        if missing and missing[0] in self._reading:
            return True
        priority = self._priorities.get(missing[0]) if missing else None
        return priority is not None and priority <= sequence.order[0]
