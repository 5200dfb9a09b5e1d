"""Generation of one request by the other server: its reply as events, and counted."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Generate, Started
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline, Timing
from mindspore_serving.llm.upstream.budget import AnswerBudget, BufferQuota
from mindspore_serving.llm.upstream.buffering import BufferedAnswers
from mindspore_serving.llm.upstream.fleet import Fleet
from mindspore_serving.llm.upstream.forwarding import Forwarding
from mindspore_serving.llm.upstream.options import UpstreamOptions
from mindspore_serving.llm.upstream.response_types import UpstreamUsage

Deliver: TypeAlias = Callable[[list[Event], bool], Awaitable[None]]
"""Takes events and whether they are the last, waiting while the receiver is full."""

_REASONS = {
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


@dataclass(slots=True)
class UpstreamTotals:
    """Totals of all requests."""

    num_chunks: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class UpstreamGeneration:
    """Forwards `request` and delivers its answer, at once or, without `is_stream`, at the end.

    `max_tokens` is the limit of an answer if the request has none; `quota` limits the memory of
    buffered answers.
    """

    def __init__(
        self,
        request: Generate,
        line: Timeline,
        recorder: GenerationRecorder,
        totals: UpstreamTotals,
        *,
        max_tokens: int,
        quota: BufferQuota,
    ) -> None:
        self._request = request
        self._line = line
        self._totals = totals
        self._timing = Timing(recorder, line)
        limit = request.params.max_tokens or max_tokens
        self._make_budget = partial(AnswerBudget, limit, request.params.n)
        self._usage = UpstreamUsage()  # the latest that the server sent
        self._buffered = BufferedAnswers(quota)
        self._has_started = False

    async def run(self, fleet: Fleet, options: UpstreamOptions, deliver: Deliver) -> None:
        """Send the request and deliver its events.  Raises ServingError."""
        forwarding = Forwarding(self._request, fleet, options, self._make_budget)
        self._line.ready = self._line.first_step = time.monotonic()
        self._timing.begin()
        with self._buffered:
            async with aclosing(forwarding.chunks()) as chunks:
                async for new in chunks:
                    self._usage = forwarding.reader.usage
                    self._count(new)
                    if self._request.is_stream:
                        await deliver([*self._started(), *new], False)
                    else:
                        self._buffered.add(new)
            self._usage = forwarding.reader.usage
            finished = self._end()
            await deliver([*self._started(), *self._buffered.chunks(), finished], True)

    def _count(self, chunks: Sequence[Chunk]) -> None:
        self._totals.num_chunks += 1
        for chunk in chunks:
            count, finish_reason = len(chunk.token_ids), chunk.finish_reason
            reason = finish_reason and _REASONS.get(finish_reason, FinishReason.STOP)
            self._timing.add(chunk.index, count, reason)
            self._line.num_generated_tokens += count
            if finish_reason is not None:
                self._line.finish_reasons.append(finish_reason)

    def _started(self) -> list[Event]:
        """Return the first event, once.

        Its prompt length may be 0: some servers send it only at the end.
        """
        if self._has_started:
            return []
        self._has_started = True
        return [Started(self._usage.prompt_tokens, self._request.params.seed or 0)]

    def _end(self) -> Finished:
        line, usage = self._line, self._usage
        prompt, answer = usage.prompt_tokens_details, usage.completion_tokens_details
        line.num_prompt_tokens = usage.prompt_tokens
        line.num_cached_tokens = (prompt and prompt.cached_tokens) or 0
        line.num_generated_tokens = usage.completion_tokens or line.num_generated_tokens
        self._totals.num_prompt_tokens += line.num_prompt_tokens
        self._totals.num_generated_tokens += line.num_generated_tokens
        self._timing.end()
        return Finished(
            line.num_prompt_tokens,
            line.num_cached_tokens,
            line.num_generated_tokens,
            num_reasoning_tokens=(answer and answer.reasoning_tokens) or 0,
        )
