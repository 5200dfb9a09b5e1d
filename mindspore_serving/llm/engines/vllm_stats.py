"""Counters of vLLM's steps, summed up as `EngineStats`."""

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from mindspore_serving.llm.engine.stats import EngineStats


class StepStats:
    """Counters of one engine."""

    def __init__(self) -> None:
        self.on_step: Callable[[int], None] | None = None
        self.num_prompt_tokens = self.num_generated = 0
        self._num_running = self._num_waiting = self._num_steps = 0
        self._queries = self._hits = self._preemptions = self._draft_tokens = self._accepted = 0
        self._usage = 0.0  # share of the cache

    def logger(self, *_: Any) -> StatLoggerBase:
        """Return the logger that vLLM reports to."""
        return _Logger(self)

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Count a step."""
        if scheduler is not None:
            self._num_steps += 1
            self._num_running = scheduler.num_running_reqs
            self._num_waiting = scheduler.num_waiting_reqs
            self._usage = scheduler.kv_cache_usage
            self._queries += scheduler.prefix_cache_stats.queries
            self._hits += scheduler.prefix_cache_stats.hits
            speculation = scheduler.spec_decoding_stats
            if speculation is not None:
                self._draft_tokens += speculation.num_draft_tokens
                self._accepted += speculation.num_accepted_tokens
            if self.on_step is not None and self._num_running:
                self.on_step(self._num_running)
        if iteration is not None:
            self._preemptions += iteration.num_preempted_reqs

    def read(self, num_blocks: int) -> EngineStats:
        return EngineStats(
            num_running=self._num_running,
            num_waiting=self._num_waiting,
            num_blocks=num_blocks,
            num_free_blocks=round(num_blocks * (1 - self._usage)),
            num_steps=self._num_steps,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated,
            num_cache_queries=self._queries,
            num_cache_hits=self._hits,
            num_preemptions=self._preemptions,
            num_draft_tokens=self._draft_tokens,
            num_accepted_tokens=self._accepted,
        )


class _Logger(StatLoggerBase):  # type: ignore[misc]  # a class of vLLM's, which is not typed here
    def __init__(self, stats: StepStats) -> None:
        self._stats = stats

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        self._stats.record(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Do nothing: the worker logs it."""
