"""One request under way: what comes of the other server, as events and in numbers."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Generate, Started
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline, Timing
from mindspore_serving.llm.upstream.budget import AnswerBudget, KeptRoom
from mindspore_serving.llm.upstream.connection import Server
from mindspore_serving.llm.upstream.events import AnswerReader
from mindspore_serving.llm.upstream.exchange import chunks
from mindspore_serving.llm.upstream.gathering import GatheredChunks
from mindspore_serving.llm.upstream.options import UpstreamOptions
from mindspore_serving.llm.upstream.requests import to_body

Put: TypeAlias = Callable[[list[Event] | ServingError, bool], None]
"""Takes events, or the error that ended the request, and whether they are the last."""
Give: TypeAlias = Callable[[list[Event], bool], Awaitable[None]]
"""The same, and waits while there is no room for more."""

_REASONS = {
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


@dataclass(slots=True)
class UpstreamTotals:
    """Of all requests."""

    num_pieces: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class UpstreamGeneration:
    """Answers `request`: at once, or at the end if it is no stream.

    `max_tokens` is what an answer may have, if the request does not say; `room` is for what is kept
    until the end.
    """

    def __init__(
        self,
        request: Generate,
        line: Timeline,
        recorder: GenerationRecorder,
        totals: UpstreamTotals,
        *,
        max_tokens: int,
        room: KeptRoom,
    ) -> None:
        self._request = request
        self._line = line
        self._totals = totals
        self._timing = Timing(recorder, line)
        budget = AnswerBudget(request.params.max_tokens or max_tokens, request.params.n)
        self._reader = AnswerReader(request, budget)
        self._gathered = GatheredChunks(room)
        self._has_started = False

    async def run(self, server: Server, model: str, options: UpstreamOptions, give: Give) -> None:
        """Raises ServingError."""
        path, body = to_body(self._request, model, options)
        self._line.ready = self._line.first_step = time.monotonic()
        self._timing.begin()
        with self._gathered:
            async for found in chunks(server, path, body, self._reader, options):
                self._note(found)
                if self._request.is_stream:
                    await give([*self._started(), *found], False)
                else:
                    self._gathered.add(found)
            finished = self._end()
            await give([*self._started(), *self._gathered.chunks(), finished], True)

    def _note(self, found: Sequence[Chunk]) -> None:
        self._totals.num_pieces += 1
        for chunk in found:
            count, given = len(chunk.token_ids), chunk.finish_reason
            reason = None if given is None else _REASONS.get(given, FinishReason.STOP)
            self._timing.add(chunk.index, count, reason)
            self._line.num_generated_tokens += count
            if given is not None:
                self._line.finish_reasons.append(given)

    def _started(self) -> list[Event]:
        """The first event, once.  Servers may say only at the end how long the prompt was."""
        if self._has_started:
            return []
        self._has_started = True
        usage = self._reader.usage
        return [Started(usage.prompt_tokens, self._request.params.seed or 0)]

    def _end(self) -> Finished:
        line, usage = self._line, self._reader.usage
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
