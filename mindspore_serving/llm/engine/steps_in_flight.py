"""Steps that a runner computes, in order: which may be scheduled now, and what they take.

A runner of pipeline stages begins a step before it has the logits of those before, so that its
stages work at the same time on groups of the sequences that decode:

    stage 0   | A | B | A | B |
    stage 1       | A | B | A | B |     a group's next step begins when its tokens are sampled

A step of all sequences is alone in flight: with prompts of many tokens, which the runner divides
itself, and where groups take longer.  Other runners have no other steps.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import cast

from mindspore_serving.core.sampling_params import Generated
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.completion import SamplingBatch
from mindspore_serving.llm.engine.scheduler import Scheduler
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.engine.step_groups import StepGroups
from mindspore_serving.llm.grammar.state import MaskThread
from mindspore_serving.llm.sampling.sampler import Sampled
from mindspore_serving.llm.step import ChoosingRunner, Logits, OverlappingRunner, Runner


@dataclass(slots=True)
class StepInFlight:
    """A step of one of `num_groups`; `num_sequences` decoded when it was scheduled."""

    scheduled: Scheduled
    began: float
    num_groups: int
    num_sequences: int
    is_computed: bool = False


class StepsInFlight:
    """Steps of `runner` that are begun, or to be run next."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._max_groups: int = getattr(runner, "max_in_flight", 1)
        self._max_tokens: int = getattr(runner, "max_tokens_in_flight", 0)
        self._groups = StepGroups(
            config.pipeline_parallel, self._max_groups, config.pipeline_groups
        )
        self._masks = MaskThread()
        self._entries: deque[StepInFlight] = deque()
        self._ended = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def num_groups(self, scheduler: Scheduler) -> int:
        """Return the number of groups for the next step; 0 if another one has to end first."""
        if self._max_groups == 1:
            return int(not self._entries)
        count = 1
        if scheduler.can_divide(self._max_tokens):
            count = self._groups.choose(scheduler.num_decoding)
        is_whole = count == 1 or any(entry.num_groups == 1 for entry in self._entries)
        return 0 if len(self._entries) >= (1 if is_whole else count) else count

    def max_tokens(self, num_groups: int) -> int | None:
        """Return the maximum number of tokens of a step; None for the engine's."""
        return None if num_groups == 1 else self._max_tokens

    def begin(self, scheduled: Scheduled, num_groups: int, num_sequences: int, now: float) -> None:
        """Begin a step of one of `num_groups` of the `num_sequences` that decode."""
        if num_groups > 1:
            cast(OverlappingRunner, self._runner).begin(scheduled.step)
        self._entries.append(StepInFlight(scheduled, now, num_groups, num_sequences))

    def sequences(self) -> Iterator[Sequence]:
        """Iterate over the sequences of all steps."""
        return chain.from_iterable(entry.scheduled.sequences for entry in self._entries)

    def take(self) -> tuple[StepInFlight, Scheduled]:
        """Remove the step that ends next, and return it."""
        entry = self._entries.popleft()
        return entry, entry.scheduled

    def sample(
        self, entry: StepInFlight, batch: SamplingBatch
    ) -> tuple[list[tuple[str, Generated]], list[Sampled]]:
        """Compute what is left of a step that was taken.

        Returns log-probabilities of prompt tokens by request, and the sampled tokens.
        """
        step = entry.scheduled.step
        if entry.num_groups == 1:
            max_best = getattr(self._runner, "max_best", 0)
            num_best = batch.num_best() if max_best else 0
            if 0 < num_best <= max_best:
                choosing = cast(ChoosingRunner, self._runner)
                return [], batch.sample_best(choosing.run_best(step, num_best))
        run = self._runner.run if entry.num_groups == 1 else lambda _: self._finish(entry)
        logits = self._masks.run_with_masks(batch.constrained, run, step)
        scores = batch.score(logits)
        batch.search(logits)
        return scores, batch.sample(logits)

    def drop(self, entry: StepInFlight) -> None:
        """Drop the logits of a step that was taken and has failed.  Raises RunnerLost."""
        if entry.num_groups > 1 and not entry.is_computed:
            self._finish(entry)

    def observe(self, entry: StepInFlight, now: float) -> float | None:
        """Learn what a step took that has ended; return the seconds, None if they say nothing."""
        since, self._ended = now - self._ended, now
        if self._max_groups == 1:
            return now - entry.began
        rows = entry.scheduled.step.rows
        is_plain = all(len(row.tokens) == row.num_logits == 1 for row in rows)
        is_steady = self._groups.observe(
            entry.num_groups, entry.num_sequences, len(rows), since, is_plain=is_plain
        )
        if entry.num_groups == 1:
            return now - entry.began
        return since if is_steady else None

    def close(self) -> None:
        self._masks.close()

    def _finish(self, entry: StepInFlight) -> Logits:
        entry.is_computed = True
        return cast(OverlappingRunner, self._runner).finish()
