"""Circuit breaker of one upstream: no requests for a while after failures in a row.

Knows no clock: the time, in seconds, is an argument.
"""

MAX_DELAY = 60.0  # seconds for which a circuit is open; doubled from its first delay up to this


class CircuitBreaker:
    """Circuit that opens after `failures` in a row, and never if that is 0.

    It is open for `delay` seconds. Then it is half-open: one request is a trial, which closes it or
    opens it again for twice as long.
    """

    def __init__(self, failures: int, delay: float) -> None:
        self._max_failures, self._first_delay = failures, delay
        self._num_failures = 0  # in a row
        self._delay = delay
        self._until: float | None = None  # None: it is closed
        self._has_trial = False

    def state(self, now: float) -> str:
        """Return "closed", "open" or "half-open"."""
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half-open"

    def allows(self, now: float) -> bool:
        """Return whether a request may be sent."""
        return self._until is None or (now >= self._until and not self._has_trial)

    def begin(self, now: float) -> bool:
        """Record that a request is sent; return whether it is the trial of a half-open circuit."""
        is_trial = self._until is not None and now >= self._until
        self._has_trial |= is_trial
        return is_trial

    def succeed(self, now: float) -> bool:
        """Record an answer; return whether it closes the circuit.

        While the circuit is open, that is an answer to a request from before, and has no effect.
        """
        if self._until is not None and now < self._until:
            return False
        was_open = self._until is not None
        self._num_failures, self._delay = 0, self._first_delay
        self._until, self._has_trial = None, False
        return was_open

    def fail(self, now: float) -> None:
        """Record a failure; failures of other requests do not prolong an open circuit."""
        self._num_failures += 1
        if self._until is not None:
            if now >= self._until:
                self._delay = min(2 * self._delay, MAX_DELAY)
                self._open(now)
        elif self._max_failures and self._num_failures >= self._max_failures:
            self._open(now)

    def end_trial(self) -> None:
        """Allow another trial: the last one ended without a result, as when its client left."""
        self._has_trial = False

    def remaining(self, now: float) -> float:
        """Return the seconds until a trial may be sent, 0 unless the circuit is open."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def _open(self, now: float) -> None:
        self._until, self._has_trial = now + self._delay, False
