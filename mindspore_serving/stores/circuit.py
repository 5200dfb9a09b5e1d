"""Pause after the failures of a store, so that nothing waits for a store that is gone."""

import time
from collections.abc import Callable

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds


class Circuit:
    """Switch that is open, for ever longer, after each failure in a row.

    Used by several threads: each assignment is whole, and a lost one costs a try.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """True while the store is not to be asked."""
        return self._clock() < self._until

    @property
    def is_failing(self) -> bool:
        """True if the last try failed."""
        return self._pause > 0

    def fail(self) -> None:
        """Pause after a failure; failures of tries that were under way together count as one."""
        if not self.is_open:
            self._pause = min(MAX_PAUSE, 2 * self._pause or FIRST_PAUSE)
            self._until = self._clock() + self._pause

    def succeed(self) -> None:
        """End the pauses."""
        self._pause = self._until = 0.0
