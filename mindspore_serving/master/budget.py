"""Limit on the number of servables that have workers, by least recent use.  It has no clock."""

from collections.abc import Iterable
from typing import Protocol


class BudgetMember(Protocol):
    """Servable whose workers can be ended while it is not used."""

    @property
    def is_loaded(self) -> bool:
        """True if it has workers, including workers that start or leave."""
        ...

    @property
    def is_leaving(self) -> bool:
        """True if all of its workers are to end."""
        ...

    @property
    def is_idle(self) -> bool:
        """True if all of its workers run and it has no requests."""
        ...

    @property
    def last_used(self) -> float:
        """Time of its last request, in seconds of any clock."""
        ...

    def unload(self) -> None:
        """End its workers."""
        ...


class LoadBudget:
    """Limit on loaded servables; 0 for no limit."""

    def __init__(self) -> None:
        self.limit = 0

    def admit(self, members: Iterable[BudgetMember]) -> bool:
        """Return whether one more servable can be loaded beside `members`.

        If not, the least recently used of the idle members is unloaded: try again later.
        """
        loaded = [member for member in members if member.is_loaded]
        if not self.limit or len(loaded) < self.limit:
            return True
        staying = [member for member in loaded if not member.is_leaving]
        idle = [member for member in staying if member.is_idle]
        if idle and len(staying) >= self.limit:
            min(idle, key=lambda member: member.last_used).unload()
        return False
