"""Resources that workers of several servables share, such as a device: who may run, and who next.

A worker holds what its servable needs while it has work.  Methods that wait for a resource get it
in the order in which they began to wait; a worker that holds it gets no further work meanwhile, so
that it is released.  No I/O and no clock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mindspore_serving.master.link import Link

Needs: TypeAlias = Mapping[str, int]


class ResourcePool:
    """Resources by name; there are as many of each as the most that was declared."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._used: Counter[str] = Counter()
        self._held: dict[object, Needs] = {}  # by worker
        self._waiting: dict[object, Needs] = {}  # methods, in the order of their turns

    def declare(self, needs: Needs, counts: Needs) -> None:
        """Add what a servable needs at once, and how many of each resource there are."""
        for numbers in (needs, counts):
            for name, number in numbers.items():
                self._totals[name] = max(self._totals.get(name, 0), number)

    def usable(self, method: object, needs: Needs, workers: Sequence[Link]) -> Sequence[Link]:
        """Return the workers to which `method` may give work; if none, it waits for its turn.

        Workers without models need nothing: others run the models for them.
        """
        used, totals, is_owner_usable = self._used, self._totals, False
        usable = [worker for worker in workers if not worker.owns_models]
        if not self._is_turn_of_another(method, needs):
            if all(used[name] + number <= totals[name] for name, number in needs.items()):
                return workers
            holders = [worker for worker in workers if worker in self._held]
            usable, is_owner_usable = [*usable, *holders], bool(holders)
        if len(usable) < len(workers) and not is_owner_usable:
            self._waiting.setdefault(method, needs)
        return usable

    def _is_turn_of_another(self, method: object, needs: Needs) -> bool:
        """Return whether a method that needs the same resource began to wait earlier."""
        for other, its_needs in self._waiting.items():
            if other is method:
                return False
            if needs.keys() & its_needs.keys():
                return True
        return False

    def end_turn(self, method: object) -> None:
        """Let `method` wait no longer, as it has given work to a worker, or has none."""
        self._waiting.pop(method, None)

    def hold(self, worker: Link, needs: Needs) -> None:
        """Note that `worker` has work of a servable with these needs."""
        if needs and worker.owns_models and worker not in self._held:
            self._held[worker] = needs
            self._used.update(needs)

    def release(self, worker: object) -> None:
        """Note that `worker` has no work, or has died."""
        self._used.subtract(self._held.pop(worker, {}))
