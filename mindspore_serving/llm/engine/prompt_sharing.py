"""How prompts share what a step has room for, so that a short one does not wait for a long one.

The first in order gets at least half of it, so that no number of short prompts delays it to more
than twice its steps.  Up to the other half goes to those with less left than it has, the shortest
first: a short prompt waits only for shorter ones.  What nobody takes goes on to the next in order;
a single prompt gets all.  Decisions only.

A prompt waits for cached blocks that there will be soon, those that another prompt computes and
those that are read from disk, if the other one is as urgent.
"""

from collections.abc import Callable, Container, Iterable

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus, StepPlan, order_of


class ComingBlocks:
    """For one step's admissions: the blocks that running sequences have not computed yet and `pool`
    does not have, and those in `reading`.
    """

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


class Entrance:
    """Who of those that wait may run from this step on.

    Args:
        coming: for blocks of which a prompt waits.
        most: prompts that are looked at because of that.
        admit: runs one, if there is room for it.
    """

    def __init__(self, coming: ComingBlocks, most: int, admit: Callable[[Sequence], bool]) -> None:
        self._coming = coming
        self._left = most
        self._admit = admit
        self._is_full = False

    def enter(self, sequence: Sequence) -> bool:
        """Whether `sequence` runs, perhaps from now on."""
        if sequence.status is SequenceStatus.RUNNING:
            return True
        if self._is_full or self._left == 0:
            return False
        if self._coming.has_next_of(sequence):
            self._left -= 1
            return False
        self._is_full = not self._admit(sequence)  # later ones wait as well, or they starve it
        return not self._is_full


def that_fit(waiting: Iterable[Sequence], block_size: int, free: int) -> list[Sequence]:
    """The first of those that are `waiting`, as far as `free` blocks are enough for all of them:
    each may pass those before it, and takes nothing from them but a part of a step.
    """
    found = []
    for sequence in waiting:
        free -= -(-len(sequence.tokens) // block_size)
        if free < 0:
            break
        found.append(sequence)
    return found


def share_room(
    prompts: Iterable[Sequence],
    quick: Iterable[Sequence],
    plan: StepPlan,
    enter: Callable[[Sequence], bool],
) -> None:
    """Add pieces of `prompts` to `plan`, of each that may `enter` the step; those that are `quick`
    may pass others.
    """
    by_length = sorted(quick, key=lambda one: (one.order[0], one.num_left, one.order))
    planned: set[int] = set()

    def add(sequence: Sequence, most: int) -> int:
        # An image that is computed at once may have taken more than there was.
        if most <= 0 or id(sequence) in planned or not enter(sequence):
            return 0
        planned.add(id(sequence))
        return plan.add_piece(sequence, most)

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
