"""Embeddings of a model that generates: a vector per text, from its last token's hidden state.

Prompts wait in their own queue and are computed beside the scheduler's steps, one forward pass in
each: as many prompts as fit, or the next chunk of a long one, in blocks that are free meanwhile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.llm.checkpoint.pooling import Pooling
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.pooler import Pooler, PromptText, pool_texts
from mindspore_serving.llm.engine.request import ModelLimits, check_generation_prompt
from mindspore_serving.llm.engine.scheduler import Scheduler
from mindspore_serving.llm.step import (
    EmbeddingRunner,
    Row,
    Runner,
    RunnerLost,
    StateSlots,
    Step,
    Vectors,
)

PROMPTS_PER_REQUEST = 32  # prompts to embed are small: so many count as a request that waits


@dataclass(slots=True)
class _LongPrompt:
    """A prompt that takes several steps.  Its tokens before `start` are computed, in `blocks`."""

    request_id: str
    text: PromptText
    blocks: list[int]
    slots: list[int]  # of its state, in a model that has one
    start: int = 0


class Embedder:
    """Computes embeddings with the runner and the free blocks of an engine, between its steps.

    `pooler` turns states into vectors; by default it takes the last token's, scaled to length 1.
    """

    def __init__(
        self, runner: Runner, scheduler: Scheduler, limits: ModelLimits, config: EngineConfig
    ) -> None:
        self._runner = runner
        self._pool = scheduler.pool
        self._states = scheduler.cache.states
        self._limits = limits
        self._config = config
        self.pooler: Pooler = Pooling(("lasttoken",))
        self._waiting: dict[str, PromptText] = {}  # by request, in order of arrival
        self._long: _LongPrompt | None = None
        self.num_lacking = 0  # blocks that the first prompt needs, if too few were free

    @property
    def has_work(self) -> bool:
        """True if any prompt waits or is being computed."""
        return bool(self._waiting) or self._long is not None

    @property
    def size(self) -> int:
        """Length of a vector; 0 if the runtime has no embeddings."""
        hidden_size = self._runner.hidden_size
        return self.pooler.size(hidden_size) if hidden_size else 0

    def add(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt; `options` are further fields of `PromptText`.

        Raises InvalidInputs as `check` does, and Overloaded if too many wait.
        """
        self._open_runner()
        limit = (self._config.max_num_waiting or 0) * PROMPTS_PER_REQUEST
        if limit and len(self._waiting) >= limit:
            raise Overloaded(
                f"{len(self._waiting)} prompts wait already, at most {limit} may; try again"
            )
        self._waiting[request_id] = PromptText(self.check(prompt_ids), **options)

    def abort(self, request_id: str) -> bool:
        """Drop a prompt.  Returns False if there is no such prompt."""
        if self._long is not None and self._long.request_id == request_id:
            self._end_long(self._long)
            return True
        return self._waiting.pop(request_id, None) is not None

    def step(self) -> list[tuple[str, Vectors | ServingError]]:
        """Compute one pass; return a vector, float32 [size], or an error per finished prompt."""
        self.num_lacking = 0
        if self._long is None and self._waiting:
            self._admit_long()
        if self._long is not None:
            return self._step_long(self._long)
        return self._step_batch()

    def check(self, prompt_ids: Iterable[int]) -> list[int]:
        """Return the prompt as a list.  Raises InvalidInputs if it cannot be embedded."""
        return check_generation_prompt(prompt_ids, self._limits)

    def embed(self, prompts: Sequence[list[int]]) -> Vectors:
        """Return the vectors of `prompts`, float32 [len(prompts), size], while nothing else runs.

        `check` must have passed the prompts.  Raises InvalidInputs if the runtime has no
        embeddings, else ServingError.
        """
        self._open_runner()
        vectors = np.zeros((len(prompts), self.size), np.float32)
        indices = {f"{index}": index for index in range(len(prompts))}
        self._waiting.update(zip(indices, map(PromptText, prompts), strict=True))
        try:
            while self.has_work:
                for request_id, vector in self.step():
                    if isinstance(vector, ServingError):
                        raise vector
                    vectors[indices[request_id]] = vector
        finally:
            for request_id in indices:
                self.abort(request_id)
        return vectors

    def _open_runner(self) -> EmbeddingRunner:
        if not self._runner.hidden_size:
            raise InvalidInputs("the runtime has no embeddings; take openvino, torch or mindspore")
        return cast(EmbeddingRunner, self._runner)

    def _admit_long(self) -> None:
        """Start the first prompt if it takes several steps and its blocks are free."""
        request_id, text = next(iter(self._waiting.items()))
        has_blocks = self._blocks_for(text) <= self._pool.num_free
        if has_blocks and len(text.ids) > self._config.max_num_batched_tokens:
            slots = self._states.allocate()
            if slots is None:
                return
            del self._waiting[request_id]
            self._long = _LongPrompt(request_id, text, self._allocate(text), slots)

    def _step_long(self, long: _LongPrompt) -> list[tuple[str, Vectors | ServingError]]:
        """Compute the next chunk of a long prompt; its vector comes with the last chunk."""
        end = long.start + self._config.max_num_batched_tokens
        if long.text.images is not None:
            end = long.text.images.end_of_piece(long.start, end)
        is_last = end >= len(long.text.ids)
        state = None
        for slot in long.slots:
            state = StateSlots(slot if long.start else -1, slot)
        piece = long.text, long.start, end, long.blocks
        step = Step((self._row(*piece, num_logits=int(is_last), state=state),))
        try:
            if not is_last:
                self._runner.run(step)
                long.start = end
                return []
            (vector,) = self._embed(step, [long.text])
        except RunnerLost:
            raise
        except Exception as error:  # whatever a runtime raises must not end the other requests
            self._end_long(long)
            return [(long.request_id, _failure(1, error))]
        self._end_long(long)
        return [(long.request_id, vector)]

    def _row(
        self,
        text: PromptText,
        start: int,
        end: int,
        blocks: list[int],
        *,
        num_logits: int = 1,
        state: StateSlots | None = None,
    ) -> Row:
        """Return the row of the tokens `start` .. `end - 1` of `text`."""
        tokens, features, rope_positions = text.ids[start:end], None, None
        if text.images is not None:
            tokens, features, rope_positions = text.images.inputs(tokens, start)
        return Row(
            tokens,
            start,
            blocks,
            num_logits,
            state=state,
            features=features,
            uses_long_rope=0 < self._runner.rope_switch < len(text.ids),
            rope_positions=rope_positions,
        )

    def _end_long(self, long: _LongPrompt) -> None:
        self._pool.free(long.blocks)
        self._states.free(long.slots)
        self._long = None

    def _step_batch(self) -> list[tuple[str, Vectors | ServingError]]:
        """Compute the prompts that fit one pass."""
        ids = self._fitting_requests()
        if not ids:
            return []
        batch = [self._waiting.pop(request_id) for request_id in ids]
        tables = [self._allocate(text) for text in batch]
        pairs = zip(batch, tables, strict=True)
        rows = [self._row(text, 0, len(text.ids), blocks) for text, blocks in pairs]
        try:
            vectors = self._embed(Step(tuple(rows)), batch)
        except RunnerLost:
            raise
        except Exception as error:  # whatever a runtime raises must not end the other requests
            failure = _failure(len(batch), error)
            return [(request_id, failure) for request_id in ids]
        finally:
            for table in tables:
                self._pool.free(table)
        return list(zip(ids, vectors, strict=True))

    def _fitting_requests(self) -> list[str]:
        """Return the requests, in order of arrival, whose prompts one pass computes."""
        ids: list[str] = []
        num_tokens = num_blocks = 0
        for request_id, text in islice(self._waiting.items(), self._config.max_num_seqs):
            num_tokens += len(text.ids)
            num_blocks += self._blocks_for(text)
            if num_blocks > self._pool.num_free and not ids:
                self.num_lacking = num_blocks
            is_full = num_tokens > self._config.max_num_batched_tokens
            if is_full or num_blocks > self._pool.num_free:
                break
            ids.append(request_id)
        return ids

    def _embed(self, step: Step, texts: Sequence[PromptText]) -> Vectors:
        """Return the vectors of `texts`, whose last tokens are in `step`."""
        states = self._open_runner().embed(step)
        return pool_texts(self.pooler, states, [1] * len(texts), texts)

    def _allocate(self, text: PromptText) -> list[int]:
        return [self._pool.allocate() for _ in range(self._blocks_for(text))]

    def _blocks_for(self, text: PromptText) -> int:
        return -(-len(text.ids) // self._runner.block_size)


def _failure(count: int, error: Exception) -> ServingError:
    """Log `error`, which is being handled, and return the answer to the requests of the step."""
    log.error("a step of %d prompts failed: %s", count, error, exc_info=True)
    return ServingError("the model failed; see the log")
