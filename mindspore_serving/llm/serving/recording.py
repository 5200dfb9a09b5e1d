"""What generations took: counted by the thread that delivers their tokens."""

import time
from collections import Counter

from mindspore_serving.core.generation import FinishReason
from mindspore_serving.metrics.catalog import GENERATIONS
from mindspore_serving.metrics.histogram import Histogram


class Recorder:
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
    """Of one generation, from its arrival on; `ready_at` is when it could be computed."""

    def __init__(self, recorder: Recorder) -> None:
        self.ready_at = self._arrived = time.monotonic()
        self._recorder = recorder
        self._first_step = self._arrived
        self._first_token = self._last_token = 0.0
        self._last_tokens: dict[int, float] = {}  # by answer

    def begin(self, at: float) -> float:
        """Its first step began `at`; the seconds that it had waited."""
        self._first_step = at
        waited = max(0.0, at - self.ready_at)
        self._recorder.observe("queue_seconds", waited)
        return waited

    def add(self, index: int, num_tokens: int, reason: FinishReason | None) -> None:
        """Answer `index` has got so many tokens, and has ended if there is a `reason`."""
        if reason is not None:
            self._recorder.answers[reason.value] += 1
        if not num_tokens:
            return
        now = self._last_token = time.monotonic()
        last = self._last_tokens.get(index)
        self._last_tokens[index] = now
        if last is not None:
            self._recorder.observe("inter_token_seconds", (now - last) / num_tokens, num_tokens)
        if not self._first_token:
            self._first_token = now
            self._recorder.observe("time_to_first_token_seconds", now - self._arrived)
            self._recorder.observe("prefill_seconds", now - self._first_step)

    def end(self, num_prompt_tokens: int, num_generated_tokens: int) -> None:
        """All its answers have ended."""
        self._recorder.observe("request_prompt_tokens", num_prompt_tokens)
        self._recorder.observe("request_generated_tokens", num_generated_tokens)
        if self._first_token:
            self._recorder.observe("generation_seconds", self._last_token - self._arrived)
            self._recorder.observe("decode_seconds", self._last_token - self._first_token)
            self._recorder.observe("inference_seconds", self._last_token - self._first_step)
