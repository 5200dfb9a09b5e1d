"""How prompts share what a step has room for, so that a short one does not wait for a long one.

The first in order gets at least half of it, so that no number of short prompts delays it to more
than twice its steps.  Up to the other half goes to those with less left than it has, the shortest
first: a short prompt waits only for shorter ones.  What nobody takes goes on to the next in order;
a single prompt gets all.  Decisions only.
"""

from collections.abc import Callable, Iterable

from mindspore_serving.llm.engine.coming import ComingBlocks
from mindspore_serving.llm.engine.sequence import Plan, Sequence, Status, order_of


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
        if sequence.status is Status.RUNNING:
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
    each may pass those before it, and takes nothing from them but a part of a step."""
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
    plan: Plan,
    enter: Callable[[Sequence], bool],
) -> None:
    """Add pieces of `prompts` to `plan`, of each that may `enter` the step; those that are `quick`
    may pass others."""
    by_length = sorted(quick, key=lambda one: (one.order[0], one.num_left, one.order))
    planned: set[int] = set()

    def add(sequence: Sequence, most: int) -> int:
        # A picture that is computed at once may have taken more than there was.
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
