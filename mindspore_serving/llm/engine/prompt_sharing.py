"""Sharing of a step's token budget by prompts, so that a short one does not wait for a long one.

    |<------------------------- budget ------------------------->|
    | first in order: at least half | shorter, shortest first    |

The first prompt in order gets at least half of the budget, so that no number of short prompts
delays it to more than twice its steps.  Up to the other half goes to prompts with fewer tokens
left, the shortest first: a short prompt waits only for shorter ones.  What these leave goes to the
next prompt in order; a single prompt gets all.  Decisions only.

A prompt waits for cached blocks that will soon exist, which another prompt computes or which are
read from a store, provided that the other prompt is at least as urgent.
"""

from collections.abc import Callable, Container, Iterable

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus, StepPlan, order_of


class PendingPrefixes:
    """Hashes of the blocks that will soon be in the cache, for the admissions of one step.

    These are the blocks that running sequences have yet to compute and `pool` does not have, and
    those in `reading`, which come from a store.
    """

    def __init__(self, pool: BlockPool, block_size: int, reading: Container[bytes] = ()) -> None:
        self._pool = pool
        self._block_size = block_size
        self._reading = reading
        self._priorities: dict[bytes, int] = {}  # by hash: of the most urgent sequence

    def expect(self, sequence: Sequence) -> None:
        """Add the blocks that `sequence` will compute.

        Sequences have to be added in order, the most urgent first.
        """
        if not sequence.is_decoding:
            full = len(sequence.tokens) // self._block_size
            hashes = sequence.hash_blocks(full, self._block_size)
            for digest in hashes[sequence.num_registered :]:
                self._priorities.setdefault(digest, sequence.order[0])

    def has_next_block(self, sequence: Sequence) -> bool:
        """Return whether the first missing block of `sequence` will soon be in the cache."""
        if not self._priorities and not self._reading:
            return False
        hashes = sequence.hash_reusable(self._block_size)
        missing = hashes[len(self._pool.find(hashes)) :]
        if missing and missing[0] in self._reading:
            return True
        priority = self._priorities.get(missing[0]) if missing else None
        return priority is not None and priority <= sequence.order[0]


class AdmissionGate:
    """Decides which waiting sequences run from this step on.

    Args:
        pending: blocks that a prompt may wait for.
        limit: number of prompts that may be passed over because they wait for blocks.
        admit: runs a sequence if there is room for it.
    """

    def __init__(
        self, pending: PendingPrefixes, limit: int, admit: Callable[[Sequence], bool]
    ) -> None:
        self._pending = pending
        self._left = limit
        self._admit = admit
        self._is_closed = False

    def enter(self, sequence: Sequence) -> bool:
        """Return whether `sequence` runs, admitting it if it waits and there is room.

        The first prompt without room closes the gate: later ones would starve it.
        """
        if sequence.status is SequenceStatus.RUNNING:
            return True
        if self._is_closed or self._left == 0:
            return False
        if self._pending.has_next_block(sequence):
            self._left -= 1
            return False
        self._is_closed = not self._admit(sequence)
        return not self._is_closed


def first_that_fit(waiting: Iterable[Sequence], block_size: int, free: int) -> list[Sequence]:
    """Return the first `waiting` sequences, as long as `free` blocks are enough for all of them.

    Each of them may overtake those before it: it takes nothing from them but a part of a step.
    """
    fitting = []
    for sequence in waiting:
        free -= -(-len(sequence.tokens) // block_size) * sequence.width
        if free < 0:
            break
        fitting.append(sequence)
    return fitting


def share_budget(
    prompts: Iterable[Sequence],
    short: Iterable[Sequence],
    plan: StepPlan,
    enter: Callable[[Sequence], bool],
) -> None:
    """Add chunks of `prompts` to `plan`, of each that may `enter` the step.

    The `short` ones may overtake others that have more tokens left.
    """
    by_length = sorted(
        short, key=lambda sequence: (sequence.order[0], sequence.num_left, order_of(sequence))
    )
    planned: set[int] = set()

    def add(sequence: Sequence, limit: int) -> int:
        # An image that is computed at once may have taken more than the budget.
        if limit <= 0 or id(sequence) in planned or not enter(sequence):
            return 0
        planned.add(id(sequence))
        return plan.add_piece(sequence, limit)

    for first in sorted(prompts, key=order_of):
        if plan.budget <= 0:
            return
        if id(first) in planned:
            continue
        half = plan.budget // 2
        for other in by_length:
            if half <= 0 or other.num_left >= first.num_left or other.order[0] > first.order[0]:
                break
            half -= add(other, half)
        add(first, plan.budget)
