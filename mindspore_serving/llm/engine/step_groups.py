"""Choice into how many groups the sequences that decode are divided, by measured seconds.

One group is a step of all sequences.  With more, a pipeline's stages compute the steps of several
groups at the same time, but each step reads all weights again.  Which is faster depends on the
stages' machines and on the number of sequences, so each number of groups is tried:

    num_groups |  1 1  2 2  3 3   1 1  2 2  3 3   2 2 2 2 ... 2 2   1 1  3 3   2 2 2 ...
                  tried in turns                  the fastest       again, ever more rarely

Medians are compared, and in turns, as other work on the machine disturbs a part of the steps.

Knows no clock and no model.
"""

from collections import deque
from statistics import median

TURN = 4  # measurements of a number of groups in a turn
NUM_TURNS = 3  # of each, until one is chosen
INTERVAL = 64  # measurements of the fastest until the others are measured again, for a turn
MAX_INTERVAL = 4096
MARGIN = 0.98  # part of the seconds of one group that more groups may take


class _Comparison:
    """Comparison of numbers of groups for about as many sequences."""

    def __init__(self, candidates: list[int]) -> None:
        # Seconds of a sequence's token in the last steps, by number of groups.
        self.seconds = {number: deque[float](maxlen=TURN * NUM_TURNS) for number in candidates}
        self._turns = deque(candidates * NUM_TURNS)
        self._num_left = TURN  # measurements of the turn, or until the next turns
        self._interval, self._fastest = INTERVAL, 0

    def choose(self) -> int:
        return self._turns[0] if self._turns else self._fastest

    def observe(self, num_groups: int, seconds: float) -> None:
        self.seconds[num_groups].append(seconds)
        if num_groups != self.choose():
            return
        self._num_left -= 1
        if self._num_left > 0:
            return
        if self._turns:
            self._turns.popleft()
            self._num_left = TURN if self._turns else self._end_turns()
        else:
            self._turns.extend(number for number in self.seconds if number != self._fastest)
            self._num_left = TURN

    def _end_turns(self) -> int:
        """Choose the fastest number; return the measurements until the next turns."""
        fastest = min(self.seconds, key=self._cost)
        is_same = fastest == self._fastest
        self._interval = min(2 * self._interval, MAX_INTERVAL) if is_same else INTERVAL
        self._fastest = fastest
        return self._interval

    def _cost(self, num_groups: int) -> float:
        return median(self.seconds[num_groups]) * (MARGIN if num_groups == 1 else 1.0)


class StepGroups:
    """Choice of the number of groups.

    Args:
        num_stages: of the pipeline; 1 for no groups.
        max_groups: the maximum number.
        fixed: the number that the operator has set; None to measure.
    """

    def __init__(self, num_stages: int, max_groups: int, fixed: int | None = None) -> None:
        self._max_groups = max_groups
        self._fixed = fixed
        self._candidates = sorted({1, num_stages, num_stages + 1})
        self._comparisons: dict[int, _Comparison] = {}
        self._num_groups = self._num_steps = 0  # of the last steps
        self._num_plain = 0

    def choose(self, num_sequences: int) -> int:
        """Return the number of groups for the sequences that decode."""
        limit = min(self._max_groups, num_sequences)
        if limit <= 1:
            return 1
        if self._fixed is not None:
            return min(self._fixed, limit)
        return self._comparison(num_sequences).choose()

    def observe(
        self, num_groups: int, num_sequences: int, size: int, seconds: float, *, is_plain: bool
    ) -> bool:
        """Learn from a step of `size` of the sequences, `seconds` after the last one ended.

        Steps that are not plain, with more than a token of each sequence, are not compared.
        Returns whether the steps before were of as many groups, so that this one took `seconds`.
        """
        if num_groups != self._num_groups:
            self._num_groups, self._num_steps, self._num_plain = num_groups, 0, 0
            return False
        self._num_steps += 1
        self._num_plain = self._num_plain + 1 if is_plain else 0
        has_choice = self._fixed is None and min(self._max_groups, num_sequences) > 1
        if has_choice and self._num_plain > num_groups:
            comparison = self._comparison(num_sequences)
            if num_groups in comparison.seconds:
                comparison.observe(num_groups, seconds / size)
        return self._num_steps > num_groups

    def _comparison(self, num_sequences: int) -> _Comparison:
        bucket = num_sequences.bit_length()
        if bucket not in self._comparisons:
            limit = min(self._max_groups, 1 << (bucket - 1))
            candidates = [number for number in self._candidates if number <= limit]
            self._comparisons[bucket] = _Comparison(candidates)
        return self._comparisons[bucket]
