"""What generations took: counted by the thread that delivers their tokens."""

import time
from collections import Counter
from dataclasses import dataclass, field

from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.metrics.catalog import GENERATIONS
from mindspore_serving.metrics.histogram import Histogram


@dataclass(slots=True)
class Timeline:
    """The times of a generation, by `time.monotonic`, 0.0 until it has come so far; and how much it
    read and wrote.
    """

    accepted: float = field(default_factory=time.monotonic)
    ready: float = 0.0  # to be computed: its prompt is tokens
    first_step: float = 0.0
    first_token: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache
    num_generated_tokens: int = 0  # of all answers
    num_guesses: int = 0  # of tokens, and how many were right
    num_right_guesses: int = 0
    finish_reasons: list[str] = field(default_factory=list)  # of those that have ended

    @property
    def began(self) -> float:
        """When it began to be computed; or came, if it did not."""
        return self.first_step or self.accepted

    @property
    def queue_seconds(self) -> float:
        """From when it was ready to its first step; 0.0 if it had none."""
        ready = self.ready or self.accepted
        return max(0.0, self.first_step - ready) if self.first_step else 0.0


class GenerationRecorder:
    """Counts for one engine; `answers` by finish reason."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self._histograms = {one.name: Histogram(one.bounds) for one in GENERATIONS}

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """`value` for the metric `serving_llm_NAME`, so many times."""
        self._histograms[f"serving_llm_{name}"].observe(value, times)

    def counts(self) -> dict[str, tuple[float, list[int]]]:
        """The sum and the counts of each histogram, by the name of its metric."""
        return {name: (one.total, one.counts[:]) for name, one in self._histograms.items()}


class Timing:
    """Of one generation, whose times are in `line`."""

    def __init__(self, recorder: GenerationRecorder, line: Timeline) -> None:
        self._recorder = recorder
        self._line = line
        self._last_token = 0.0
        self._last_tokens: dict[int, float] = {}  # by answer

    def begin(self) -> None:
        """Its first step has begun."""
        self._recorder.observe("queue_seconds", self._line.queue_seconds)

    def add(self, index: int, num_tokens: int, reason: FinishReason | None) -> None:
        """Answer `index` has got so many tokens, and has ended if there is a `reason`."""
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
        """All its answers have ended."""
        line = self._line
        self._recorder.observe("request_prompt_tokens", line.num_prompt_tokens)
        self._recorder.observe("request_generated_tokens", line.num_generated_tokens)
        if line.first_token:
            self._recorder.observe("generation_seconds", self._last_token - line.accepted)
            self._recorder.observe("decode_seconds", self._last_token - line.first_token)
            self._recorder.observe("inference_seconds", self._last_token - line.began)
