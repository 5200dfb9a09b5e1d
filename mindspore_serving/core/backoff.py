"""Delays before a process that died is restarted: none at first, then growing.  No clock."""

from dataclasses import dataclass

QUICK = 10.0  # seconds; a worker that dies within this time of its start died quickly
MAX_QUICK_DEATHS = 5  # in a row, after which nobody waits for the next start
FIRST_DELAY, MAX_DELAY = 0.25, 30.0


@dataclass(slots=True)
class Backoff:
    """Restart policy: at once after a first death, then later after each quick death in a row.

    `policy` is "always", "limited" (give up after MAX_QUICK_DEATHS) or "never".
    """

    policy: str = "always"
    num_quick: int = 0

    @property
    def is_failing(self) -> bool:
        """True after so many quick deaths that nobody should wait for the next start."""
        return self.num_quick >= MAX_QUICK_DEATHS

    def died(self, ran_for: float) -> float | None:
        """Return the seconds until the restart, None to give up; `ran_for` is in seconds."""
        if self.policy == "never":
            return None
        if ran_for >= QUICK:
            self.num_quick = 0
            return 0.0
        self.num_quick += 1
        if self.is_failing and self.policy == "limited":
            return None
        if self.num_quick == 1:
            return 0.0
        return float(min(MAX_DELAY, FIRST_DELAY * 2 ** min(self.num_quick - 2, 16)))
