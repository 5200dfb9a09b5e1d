"""One `Generate` under way: what it asks of the engine, and the events it makes of the outputs."""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mindspore_serving.core.generation import Generated
from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    PromptScored,
    Started,
)
from mindspore_serving.llm.engine.engine import PROMPT, Engine
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving.engine_loop import FirstStep

Command = Callable[[Engine], Any]


class GenerateAnswer:
    """Collects what is generated; tells it at once, or at the end if the ask is no stream."""

    def __init__(self, ask_id: str, ask: Generate, teller: OutputProcessor) -> None:
        self.request_ids = (ask_id,)
        self._ask = ask
        self._teller = teller
        self._num_open = ask.params.n
        self._parts: dict[int, list[Generated]] = {}
        self._num_prompt_tokens = self._num_cached = self._num_generated = 0
        self._ready_at = time.monotonic()
        self._queue_seconds = 0.0

    @property
    def is_done(self) -> bool:
        return self._num_open == 0

    def prepare(self, ask: Generate, preparer: Processor) -> list[tuple[str, Command]]:
        """What to do with the engine.  Called in the pool.  Raises ServingError."""
        ids, grammar = preparer.prompt(ask), preparer.grammar(ask.grammar)
        params = ask.params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        request_id, place = self.request_ids[0], preparer.adapter(ask.adapter)
        prompt = self._teller.prompt(ids) if ask.has_prompt_tokens else None

        def add(engine: Engine) -> Any:
            engine.add(
                request_id,
                ids,
                params,
                priority=ask.priority,
                cache_salt=ask.cache_salt,
                adapter=place,
                grammar=grammar,
                continues=ask.messages is None,
            )
            waited = time.monotonic() - self._ready_at
            return [(request_id, Started(len(ids), params.seed or 0, prompt, waited))]

        self._ready_at = time.monotonic()
        return [(request_id, add)]

    def take(self, request_id: str, output: Started | FirstStep | Generated) -> list[Event]:
        """The events that `output` makes."""
        if isinstance(output, Started):
            self._num_prompt_tokens = output.num_prompt_tokens
            return [output]
        if isinstance(output, FirstStep):
            self._queue_seconds = max(0.0, output.at - self._ready_at)
            return []
        if output.index == PROMPT:
            return [PromptScored(self._teller.tokens(output.token_ids, output.logprobs))]
        self._num_generated += len(output.token_ids)
        is_end = output.finish_reason is not None
        self._num_open -= is_end
        self._num_cached = max(self._num_cached, output.num_cached_tokens)
        events: list[Event] = []
        piece = self._piece(output)
        if piece is not None:
            events.append(piece)
        if self.is_done:
            counts = self._num_prompt_tokens, self._num_cached, self._num_generated
            events.append(Finished(*counts, self._queue_seconds))
        return events

    def _piece(self, output: Generated) -> Chunk | None:
        has_tokens = self._ask.has_tokens
        if self._ask.is_stream:
            is_empty = not output.text and output.finish_reason is None and not has_tokens
            return None if is_empty else self._teller.piece(output, has_tokens=has_tokens)
        parts = self._parts.setdefault(output.index, [])
        parts.append(output)
        if output.finish_reason is None:
            return None
        return self._teller.joined(self._parts.pop(output.index), has_tokens=has_tokens)
