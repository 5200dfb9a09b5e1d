"""Cost and gain of a model's draft tokens: passes timed, steps compared, trials bounded.

Knows no model; `draft_model` and `prediction_head` compute the tokens.
"""

from collections.abc import Callable, Mapping
from math import exp, log
from typing import TypeAlias

from mindspore_serving import log as logs
from mindspore_serving.llm.engine.acceptance import ModelAcceptance
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.step import Runner

Clock: TypeAlias = Callable[[], float]
"""Returns seconds."""

_TRIAL_SHARE = 0.01  # of the time, for draft tokens that do not seem to be worth their cost
_PRIOR_COST = 0.2  # of a pass, relative to a step of the large model
_RATE = 0.1  # part of an error that is corrected at once, after the first comparisons


class DraftSource:
    """Base of models that draft tokens.

    `seconds` is how long the last `propose` took, by `clock`; `cost` is a pass relative to a step
    of the large model with as many rows; `rate` is the acceptance rate in all sequences; `passes`
    are the rows and the seconds of a pass.
    """

    name = ""  # in the log
    is_always_due = False  # also if no draft tokens are requested

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self.rate = ModelAcceptance()
        self.cost = _PRIOR_COST
        self.seconds = 0.0
        self.runner, self.clock = runner, clock
        self.is_lost = False
        self.passes: tuple[int, float] | None = None
        self._spent = 0.0  # seconds since tokens were drafted
        self._trial_debt = 0.0  # seconds of trials that exceed `_TRIAL_SHARE` so far
        self._num_compared = 0

    def max_draft_tokens(self, sequence: Sequence) -> int:
        """Return the maximum number of tokens that can be drafted for `sequence`."""
        raise NotImplementedError

    def num_missing(self, sequence: Sequence) -> int:
        """Return how many tokens of `sequence` are to be computed before it can be drafted."""
        raise NotImplementedError

    @property
    def may_try(self) -> bool:
        """True if there is time to find out whether draft tokens are worth their cost now."""
        return self._trial_debt <= 0

    def propose(self, requested: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return for each sequence at least one draft token, and up to as many as `requested` says.

        Sequences that cannot be drafted now are left out.
        """
        self.seconds, self.passes = 0.0, None
        if self.is_lost or not (requested or self.is_always_due):
            return {}
        began = self.clock()
        try:
            drafts = self._draft(requested)
        except Exception as error:  # draft tokens change no answer, so the answers go on
            logs.error("the %s failed and is no longer used: %s", self.name, error, exc_info=True)
            self.is_lost, drafts = True, {}
        self.seconds = self.clock() - began
        self._spent += self.seconds
        if drafts:
            self._trial_debt, self._spent = self._spent, 0.0
        return drafts

    def observe(self, seconds: float, plain: Callable[[int], float] | None) -> None:
        """Learn from a step of the large model that took `seconds`.

        `plain(n)` is the time of one with n rows; None if it is not known.
        """
        self._trial_debt -= _TRIAL_SHARE * seconds
        if plain is None or self.passes is None:
            return
        rows, seconds_of_pass = self.passes
        if min(seconds_of_pass, plain(rows)) > 0:
            self._num_compared += 1
            error = log(seconds_of_pass / plain(rows)) - log(self.cost)
            self.cost *= exp(max(_RATE, 1 / self._num_compared) * error)

    def follow(self, scheduled: Scheduled) -> None:
        """Note a step of the large model, which is computed and whose tokens are written."""

    def close(self) -> None:
        """Close the runner."""
        self.runner.close()

    def _draft(self, requested: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        raise NotImplementedError
