"""Times and sizes of generations, counted by the thread that delivers their tokens."""

import time
from collections import Counter
from dataclasses import dataclass, field

from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.metrics.catalog import GENERATIONS
from mindspore_serving.metrics.histogram import Histogram


@dataclass(slots=True)
class Timeline:
    """Times of a generation, by `time.monotonic`, 0.0 until reached; and its token counts."""

    accepted: float = field(default_factory=time.monotonic)
    ready: float = 0.0  # to be computed: its prompt is prepared
    first_step: float = 0.0
    first_token: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, from the prefix cache
    num_generated_tokens: int = 0  # of all answers
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)  # of answers that have ended

    @property
    def began(self) -> float:
        """Time at which its first step began; of its arrival if there was none."""
        return self.first_step or self.accepted

    @property
    def queue_seconds(self) -> float:
        """Seconds from when it was ready to its first step; 0.0 if it had none."""
        ready = self.ready or self.accepted
        return max(0.0, self.first_step - ready) if self.first_step else 0.0


class GenerationRecorder:
    """Counters and histograms of one engine; `answers` by finish reason."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self._histograms = {metric.name: Histogram(metric.bounds) for metric in GENERATIONS}

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Add `value` to the histogram of the metric `serving_llm_NAME`, `times` times."""
        self._histograms[f"serving_llm_{name}"].observe(value, times)

    def counts(self) -> dict[str, tuple[float, list[int]]]:
        """Return the sum and the counts of each histogram, by the name of its metric."""
        return {name: (row.total, row.counts[:]) for name, row in self._histograms.items()}


class Timing:
    """Measures one generation, whose times are in `line`."""

    def __init__(self, recorder: GenerationRecorder, line: Timeline) -> None:
        self._recorder = recorder
        self._line = line
        self._last_token = 0.0
        self._last_tokens: dict[int, float] = {}  # by answer

    def begin(self) -> None:
        """Record that its first step has begun."""
        self._recorder.observe("queue_seconds", self._line.queue_seconds)

    def add(self, index: int, num_tokens: int, reason: FinishReason | None) -> None:
        """Record that answer `index` has got `num_tokens`, and has ended if there is a `reason`."""
        if reason is not None:
            self._recorder.answers[reason.value] += 1
        if not num_tokens:
            return
        line, now = self._line, time.monotonic()
        self._last_token = now
        last = self._last_tokens.get(index)
        self._last_tokens[index] = now
        if last is not None:
            self._recorder.observe("inter_token_seconds", (now - last) / num_tokens, num_tokens)
        if not line.first_token:
            line.first_token = now
            self._recorder.observe("time_to_first_token_seconds", now - line.accepted)
            self._recorder.observe("prefill_seconds", now - line.began)

    def end(self) -> None:
        """Record that all its answers have ended."""
        line = self._line
        self._recorder.observe("request_prompt_tokens", line.num_prompt_tokens)
        self._recorder.observe("request_generated_tokens", line.num_generated_tokens)
        if line.first_token:
            self._recorder.observe("generation_seconds", self._last_token - line.accepted)
            self._recorder.observe("decode_seconds", self._last_token - line.first_token)
            self._recorder.observe("inference_seconds", self._last_token - line.began)
