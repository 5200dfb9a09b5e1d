"""Seconds that computing a block of a prompt takes, as steps show.  Knows no clock and no model."""

_RATE = 0.2  # part of a new measurement in the mean


class BlockCost:
    """Mean seconds of a block, over steps that complete several; 0 until there was one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = self._ended = 0.0
        self._num_blocks = 0

    def begin(self, now: float) -> None:
        """Note that a step begins."""
        if self._num_blocks > 1:
            seconds = (self._ended - self._began) / self._num_blocks
            self.seconds += (seconds - self.seconds) * (_RATE if self.seconds else 1.0)
        self._began, self._num_blocks = now, 0

    def add(self, count: int, now: float) -> None:
        """Note that the step has completed `count` blocks."""
        self._ended = now
        self._num_blocks += count
