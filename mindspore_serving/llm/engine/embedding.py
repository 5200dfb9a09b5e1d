"""One vector for each text: the final hidden state of its last token, scaled to length 1.

Prompts wait in their own queue and are computed beside the scheduler's steps, many in one step of
bounded size, out of blocks that are free for that long.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

import numpy as np

from mindspore_serving import log
from mindspore_serving.core.vectors import Vectors, unit_vectors
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.request import ModelLimits, check_generation_prompt
from mindspore_serving.llm.step import EmbeddingRunner, Row, Runner, Step

PROMPTS_PER_REQUEST = 32  # that may wait for each request of `max_num_waiting`: they are small


class Embedder:
    """Embeds with the runner and out of the blocks of an engine, between its steps."""

    def __init__(
        self, runner: Runner, pool: BlockPool, limits: ModelLimits, config: EngineConfig
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._limits = limits
        self._config = config
        self._waiting: dict[str, list[int]] = {}  # by request, in order of arrival
        self.num_lacking = 0  # blocks that the first of them could not have, all of its own

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, request_id: str, prompt_ids: Iterable[int]) -> None:
        """Let a prompt wait for its step.  Raises as `check` does, and Overloaded."""
        self._open_runner()
        most = (self._config.max_num_waiting or 0) * PROMPTS_PER_REQUEST
        if most and len(self._waiting) >= most:
            raise Overloaded(f"{len(self._waiting)} prompts wait already, at most {most} may")
        self._waiting[request_id] = self.check(prompt_ids)

    def abort(self, request_id: str) -> bool:
        """Forget a prompt that waits.  False if there is none such."""
        return self._waiting.pop(request_id, None) is not None

    def step(self) -> list[tuple[str, Vectors | ServingError]]:
        """Compute the prompts that fit one step: float32 [hidden_size] of each by request, or why
        there is none.  None of them while those that run have left too few blocks."""
        prompts = list(islice(self._waiting.values(), self._config.max_num_seqs))
        self.num_lacking = 0
        if not prompts:
            return []
        try:
            batch = self._fitting(prompts, 0)
        except Overloaded:
            self.num_lacking = self._blocks_for(prompts[0])
            return []
        ids = list(islice(self._waiting, len(batch)))
        for request_id in ids:
            del self._waiting[request_id]
        try:
            vectors = unit_vectors(self._compute(self._open_runner(), batch))
        except Exception as error:  # whatever a runtime raises must not end the other requests
            log.error("a step of %d prompts failed: %s", len(batch), error, exc_info=True)
            problem = ServingError("the model failed; see the log")
            return [(request_id, problem) for request_id in ids]
        return list(zip(ids, vectors, strict=True))

    def check(self, prompt_ids: Iterable[int]) -> list[int]:
        """The prompt as a list.  Raises InvalidInputs if it cannot be embedded."""
        return check_generation_prompt(prompt_ids, self._limits)

    def embed(self, prompts: Sequence[list[int]]) -> Vectors:
        """float32 [len(prompts), hidden_size] of prompts that `check` has passed.

        Raises InvalidInputs if the runtime has no embeddings, Overloaded if running requests have
        left too few blocks.
        """
        runner = self._open_runner()
        vectors = np.zeros((len(prompts), runner.hidden_size), np.float32)
        begin = 0
        while begin < len(prompts):
            batch = self._fitting(prompts, begin)
            vectors[begin : begin + len(batch)] = self._compute(runner, batch)
            begin += len(batch)
        return unit_vectors(vectors)

    def _open_runner(self) -> EmbeddingRunner:
        if not self._runner.hidden_size:
            raise InvalidInputs("the runtime has no embeddings; take openvino or torch")
        return cast(EmbeddingRunner, self._runner)

    def _fitting(self, prompts: Sequence[list[int]], begin: int) -> Sequence[list[int]]:
        """The prompts from `begin` that one step computes; a long one alone, in several steps."""
        end, num_tokens, num_blocks = begin, 0, 0
        for prompt in prompts[begin : begin + self._config.max_num_seqs]:
            num_tokens += len(prompt)
            num_blocks += self._blocks_for(prompt)
            is_full = num_tokens > self._config.max_num_batched_tokens and end > begin
            if is_full or num_blocks > self._pool.num_free:
                break
            end += 1
        if end == begin:
            raise Overloaded(
                f"a prompt of {len(prompts[begin])} tokens needs {num_blocks} blocks, of which "
                f"{self._pool.num_free} are free; try again"
            )
        return prompts[begin:end]

    def _compute(self, runner: EmbeddingRunner, batch: Sequence[list[int]]) -> Vectors:
        tables = [[self._pool.allocate() for _ in range(self._blocks_for(p))] for p in batch]
        most, start = self._config.max_num_batched_tokens, 0
        try:
            while len(batch[0]) - start > most:
                runner.run(Step((Row(batch[0][start : start + most], start, tables[0], 0),)))
                start += most
            rows = [Row(p[start:], start, t, 1) for p, t in zip(batch, tables, strict=True)]
            return runner.embed(Step(tuple(rows)))
        finally:
            for table in tables:
                self._pool.free(table)

    def _blocks_for(self, prompt: list[int]) -> int:
        return -(-len(prompt) // self._runner.block_size)
