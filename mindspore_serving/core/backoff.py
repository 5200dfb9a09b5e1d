"""When to start again what has died: at once, then ever later.  No clock."""

from dataclasses import dataclass

QUICK = 10.0  # seconds; a worker that dies earlier after its start died quickly
MOST_QUICK_DEATHS = 5  # in a row, until nobody waits for the next start
FIRST_DELAY, MOST_DELAY = 0.25, 30.0


@dataclass(slots=True)
class Backoff:
    """When to restart: at once after a first death, later after each quick one in a row.

    `policy` is "always" (restart for ever), "limited" (give up after MOST_QUICK_DEATHS) or "never".
    """

    policy: str = "always"
    num_quick: int = 0

    @property
    def is_failing(self) -> bool:
        """Whether it has died so often that nobody should wait for the next start."""
        return self.num_quick >= MOST_QUICK_DEATHS

    def died(self, ran_for: float) -> float | None:
        """Seconds to wait before the restart; None to give up.  `ran_for` is in seconds."""
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
        return float(min(MOST_DELAY, FIRST_DELAY * 2 ** min(self.num_quick - 2, 16)))
