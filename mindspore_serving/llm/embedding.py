"""One vector for each text: the final hidden state of its last token, scaled to length 1.

Steps run at once, beside the scheduler: nothing waits, and the blocks are given back after each.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from mindspore_serving.errors import InvalidInputs, Overloaded
from mindspore_serving.llm.blocks import BlockPool
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.request import Limits, check_prompt
from mindspore_serving.llm.step import EmbeddingRunner, Row, Runner, Step, Vectors


class Embedder:
    """Embeds with the runner and out of the blocks of an engine, between its steps."""

    def __init__(
        self, runner: Runner, pool: BlockPool, limits: Limits, config: EngineConfig
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._limits = limits
        self._config = config

    def check(self, prompt_ids: Iterable[int]) -> list[int]:
        """The prompt as a list.  Raises InvalidInputs if it cannot be embedded."""
        return check_prompt(prompt_ids, self._limits)

    def embed(self, prompts: Sequence[list[int]]) -> Vectors:
        """float32 [len(prompts), hidden_size] of prompts that `check` has passed.

        Raises InvalidInputs if the runtime has no embeddings, Overloaded if running requests have
        left too few blocks.
        """
        if not hasattr(self._runner, "embed"):
            raise InvalidInputs("the runtime has no embeddings; take openvino or torch")
        runner = cast(EmbeddingRunner, self._runner)
        vectors = np.zeros((len(prompts), runner.hidden_size), np.float32)
        begin = 0
        while begin < len(prompts):
            batch = self._fitting(prompts, begin)
            vectors[begin : begin + len(batch)] = self._compute(runner, batch)
            begin += len(batch)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
        return unit

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
