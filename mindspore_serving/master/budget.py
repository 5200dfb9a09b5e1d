"""At most so many servables have workers: those that were used last.  Decides; has no clock."""

from collections.abc import Iterable
from typing import Protocol


class BudgetMember(Protocol):
    """A servable whose workers may be ended while nobody uses it."""

    @property
    def is_loaded(self) -> bool:
        """Whether it has workers, also such that start or leave."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether all workers that it has are to end."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether all its workers run, and it has no requests."""
        ...

    @property
    def last_used(self) -> float:
        """When it had requests last, in seconds of any clock."""
        ...

    def unload(self) -> None:
        """End its workers."""
        ...


class LoadBudget:
    """`most` servables may have workers; 0 for any number."""

    def __init__(self) -> None:
        self.limit = 0

    def admit(self, others: Iterable[BudgetMember]) -> bool:
        """Whether one may be loaded beside `others`.  If not, that of them which has not been used
        for the longest time is unloaded, if it is idle: ask again.
        """
        loaded = [one for one in others if one.is_loaded]
        if not self.limit or len(loaded) < self.limit:
            return True
        staying = [one for one in loaded if not one.is_leaving]
        idle = [one for one in staying if one.is_idle]
        if idle and len(staying) >= self.limit:
            min(idle, key=lambda one: one.last_used).unload()
        return False
