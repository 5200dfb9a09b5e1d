"""Choice into how many groups the sequences that decode are divided, by measured seconds.

One group is a step of all sequences.  With more, a pipeline's stages compute the steps of several
groups at the same time, but each step reads all weights again.  Which is faster depends on the
stages' machines and on the number of sequences, so each number of groups is tried:

    num_groups |  1 1 1 1   2 2 2 2   3 3 3 3   2 2 2 2 ... 2 2   1 1   3 3   2 2 2 ...
                  tried     tried     tried     the best          again, ever more rarely

Knows no clock and no model.
"""

from dataclasses import dataclass

NUM_TRIALS = 8  # measurements of a number of groups before others are compared with it
INTERVAL = 256  # measurements of the best until the others are measured again
MAX_INTERVAL = 8192
_RATE = 0.2  # part of a new measurement in the mean
_LIMIT = 2.0  # of a measurement, in means: a pause is not a cost
MARGIN = 0.98  # part of the seconds of one group that more groups may take


@dataclass(slots=True)
class _Mean:
    """Mean seconds of a sequence's token, and how many measurements are missing."""

    seconds: float = 0.0
    count: int = 0
    num_missing: int = NUM_TRIALS

    def add(self, seconds: float) -> None:
        if self.count:
            seconds = min(seconds, _LIMIT * self.seconds)
        self.count += 1
        self.num_missing = max(0, self.num_missing - 1)
        self.seconds += (seconds - self.seconds) * max(_RATE, 1 / self.count)


class _Comparison:
    """Comparison of numbers of groups for about as many sequences."""

    def __init__(self, candidates: list[int]) -> None:
        self.means = {num_groups: _Mean() for num_groups in candidates}
        self._interval, self._num_since, self._best = INTERVAL, 0, 0

    def choose(self) -> int:
        for num_groups, mean in self.means.items():
            if mean.num_missing:
                return num_groups
        return self.best

    @property
    def best(self) -> int:
        return min(self.means, key=self._cost)

    def observe(self, num_groups: int, seconds: float) -> None:
        self.means[num_groups].add(seconds)
        if any(mean.num_missing for mean in self.means.values()):
            return
        best, self._num_since = self.best, self._num_since + 1
        if best != self._best:
            self._best, self._interval, self._num_since = best, INTERVAL, 0
        elif self._num_since >= self._interval:
            self._interval, self._num_since = min(2 * self._interval, MAX_INTERVAL), 0
            for other, mean in self.means.items():
                mean.num_missing = NUM_TRIALS // 2 if other != best else 0

    def _cost(self, num_groups: int) -> float:
        return self.means[num_groups].seconds * (MARGIN if num_groups == 1 else 1.0)


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
            if num_groups in comparison.means:
                comparison.observe(num_groups, seconds / size)
        return self._num_steps > num_groups

    def _comparison(self, num_sequences: int) -> _Comparison:
        bucket = num_sequences.bit_length()
        if bucket not in self._comparisons:
            limit = min(self._max_groups, 1 << (bucket - 1))
            candidates = [number for number in self._candidates if number <= limit]
            self._comparisons[bucket] = _Comparison(candidates)
        return self._comparisons[bucket]
