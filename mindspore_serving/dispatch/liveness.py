"""Whether a worker lives, by its heartbeats.  No clock: how much time passes is an argument."""

from dataclasses import dataclass

INTERVAL = 1.0  # seconds between two heartbeats, or a quarter of the timeout
MOST_TIMEOUTS = 3  # of silence, after which a worker is ended


def interval(timeout: float) -> float:
    """Seconds between two heartbeats of a worker, for this timeout; 0 for none at all."""
    return min(INTERVAL, timeout / 4)


@dataclass(slots=True)
class Pulse:
    """Of one worker; with a `timeout` of 0 it always lives."""

    timeout: float
    silent_for: float = 0.0  # seconds

    @property
    def is_silent(self) -> bool:
        """Whether it is to get no work."""
        return 0 < self.timeout <= self.silent_for

    @property
    def is_dead(self) -> bool:
        """Whether it is to be ended."""
        return 0 < MOST_TIMEOUTS * self.timeout <= self.silent_for

    def beat(self) -> None:
        """A heartbeat has come."""
        self.silent_for = 0.0

    def wait(self, seconds: float) -> None:
        """No heartbeat has come for as many more seconds."""
        self.silent_for += seconds
