"""Cache of a runner, as sequences use it: blocks, stored blocks, and slots for states.

It says what fits and where it is kept; the scheduler decides which sequence gets it.
"""

from collections.abc import Iterable
from typing import Protocol

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.states import NoStates, StatePool
from mindspore_serving.llm.engine.stored_blocks import NoStoredBlocks, StoredBlocks


class CacheLayout(Protocol):
    """Sizes of a runner's cache.

    `num_slots` is 0 without states, `rope_switch` 0 if the keys of a sequence never change with its
    length.
    """

    num_blocks: int
    block_size: int
    num_slots: int
    rope_switch: int


class SequenceCache:
    """Owner of the blocks and of the state slots.

    A model without states has `NoStates`, an engine that keeps blocks in memory alone
    `NoStoredBlocks`.
    """

    def __init__(self, config: EngineConfig, layout: CacheLayout) -> None:
        self.pool = BlockPool(layout.num_blocks)
        self.block_size = layout.block_size
        self.states: StatePool | NoStates = NoStates()
        if layout.num_slots:
            keeps_snapshots = config.enable_prefix_caching
            self.states = StatePool(
                layout.num_slots, layout.block_size, keeps_snapshots=keeps_snapshots
            )
        self.stored: StoredBlocks | NoStoredBlocks = NoStoredBlocks()
        self.max_running = min(config.max_num_seqs, self.states.max_running)
        # Whether a prompt can share the blocks that another prompt is computing.
        self.shares_pending = config.enable_prefix_caching and not layout.num_slots
        self.num_queries = self.num_hits = 0  # tokens admitted, and cached ones
        self._has_prefixes = config.enable_prefix_caching
        self._rope_switch = layout.rope_switch

    def prepare(self, sequence: Sequence) -> None:
        """Prepare `sequence`, which has no blocks yet."""
        sequence.select_rope(self._rope_switch)

    def admit(self, sequence: Sequence, num_spare: int) -> bool:
        """Allocate blocks for all tokens of `sequence`, sharing those that the cache holds.

        Returns False, and changes nothing, if fewer than `num_spare` blocks would be left free.
        The last token is always computed, as its logits are needed.
        """
        pool = self.pool
        if pool.num_free == 0:
            return False
        shared: list[int] = []
        if self._has_prefixes:
            shared = pool.find(sequence.hash_reusable(self.block_size))
            shared = shared[: self.states.find(sequence, len(shared))]
        num_new = self._blocks_for(len(sequence.tokens)) * sequence.width - len(shared)
        if num_new + pool.num_unused(shared) + num_spare > pool.num_free:
            return False
        pool.share(shared)
        self.states.begin(sequence, len(shared))
        sequence.blocks = shared + [pool.allocate() for _ in range(num_new)]
        sequence.num_registered = len(shared)
        sequence.num_computed = len(shared) * self.block_size
        self.num_queries += len(sequence.tokens)
        self.num_hits += sequence.num_computed
        return True

    def append(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Allocate an unshared block for the next token of `sequence`.

        Returns the copy to do first, as (from block, to block), if the block was shared (copy on
        write).
        """
        blocks = sequence.blocks
        index = (len(sequence.tokens) - 1) // self.block_size
        block = self.pool.allocate()
        if index == len(blocks):
            blocks.append(block)
            return []
        copy = (blocks[index], block)  # shared with a fork
        self.pool.free([blocks[index]])
        blocks[index] = block
        return [copy]

    def fit_draft(self, sequence: Sequence, limit: int) -> list[int]:
        """Return up to `limit` draft tokens of `sequence`, as far as blocks have room for them."""
        length = len(sequence.tokens)
        count = max(0, min(len(sequence.draft), limit, sequence.room))
        count = self.states.fit_draft(sequence, count)
        if self._rope_switch and not sequence.uses_long_rope:
            count = min(count, self._rope_switch - length)
        blocks = sequence.blocks
        missing = self._blocks_for(length + count) - len(blocks)
        while missing > 0 and self.pool.num_free:
            blocks.append(self.pool.allocate())
            missing -= 1
        return sequence.draft[: min(count, len(blocks) * self.block_size - length)]

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` continue from the tokens that `parent` has computed."""
        child.num_computed = parent.num_computed
        child.blocks = parent.blocks[: self._blocks_for(child.num_computed)]
        child.num_registered = parent.num_registered
        self.pool.share(child.blocks)
        self.states.share(parent, child)

    def register(self, sequence: Sequence) -> None:
        """Register the full blocks of `sequence`, so that later prompts can share them."""
        if not self._has_prefixes:
            return
        full = sequence.num_computed // self.block_size
        hashes = sequence.hash_blocks(full, self.block_size)
        for index in range(sequence.num_registered, full):
            self.pool.register(sequence.blocks[index], hashes[index])
        self.stored.add(sequence, hashes[sequence.num_registered :])
        sequence.num_registered = full

    def outgrown(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Return the sequences that have grown beyond `rope_switch`: all their keys change."""
        switch = self._rope_switch
        if not switch:
            return []
        return [
            sequence
            for sequence in running
            if len(sequence.tokens) > switch and not sequence.uses_long_rope
        ]

    def release(self, sequence: Sequence) -> None:
        """Free the blocks and slots of `sequence`."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        self.states.release(sequence)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
