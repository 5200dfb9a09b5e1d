"""A runner for tests that computes by arithmetic, so that every answer can be worked out by hand.

The cache holds one integer per token.  The likeliest token is a function of all tokens up to it *as
they are found through the row's block table*: (sum of (token + 1 + adapter * 1000003) *
31**position, modulo 2**31 - 1) modulo the vocabulary, and 7 more for each token of a long sequence.
A wrong table, a missing copy or a read of what was never written gives a wrong answer.  With state
slots, so does a wrong slot: the state is the sum.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import RUNTIMES, Runtime
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.step import CacheMemory, Logits, Row, StateSlots, Step

_PRIME = 2**31 - 1
_FACTOR = 31
_ADAPTER = 1_000_003
_LONG = 7
ADAPTERS = range(1, 9)  # that rows may name, without any being loaded
_BYTES_PER_TOKEN = 8
_STATE_BYTES = 99  # of a number of 31 bits: more than three blocks of four tokens


class ToyRunner(LimitedRunner):
    """A `StoringRunner`.  Logits fall by 1/2 per token from the likeliest upwards, circularly."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = 128,
        max_model_len: int = 256,
        *,
        num_slots: int = 0,
        rope_switch: int = 0,
    ) -> None:
        limits = RunnerLimits(
            block_size, num_blocks, vocab_size, max_model_len, ADAPTERS, num_slots
        )
        super().__init__(limits)
        self.cache_memory = CacheMemory(
            block_size * _BYTES_PER_TOKEN, can_release=True, reason="a toy"
        )
        self.block_bytes, self.block_format = block_size * _BYTES_PER_TOKEN, "toy"
        self._states = [-1] * num_slots
        self.state_bytes = _STATE_BYTES if num_slots else 0
        self.rope_switch = rope_switch
        self._cache = np.full((num_blocks, block_size), -1, np.int64)  # -1: never written
        factors = np.empty(max_model_len, np.int64)
        factors[0] = 1
        for position in range(1, max_model_len):
            factors[position] = factors[position - 1] * _FACTOR % _PRIME
        self._factors = factors
        self._falling = -0.5 * np.arange(vocab_size, dtype=np.float32)

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError for a row that cannot be computed."""
        layout = lay_out(step, self._limits)
        for source, target in step.copies:
            self._cache[target] = self._cache[source]
        adapters = np.repeat([s.adapter for s in layout.spans], [len(r.tokens) for r in step.rows])
        self._cache.reshape(-1)[layout.slots] = (
            layout.token_ids + 1 + adapters * _ADAPTER + layout.uses_long_rope * _LONG
        )
        best = [token for row in step.rows for token in self._likeliest(row)]
        logits = np.empty((len(best), self.vocab_size), np.float32)
        for index, token in enumerate(best):
            logits[index, token:] = self._falling[: self.vocab_size - token]
            logits[index, :token] = self._falling[self.vocab_size - token :]
        return logits

    def read_block(self, block: int) -> memoryview:
        return memoryview(self._cache[block].tobytes())

    def write_block(self, block: int, content: memoryview) -> None:
        self._cache[block] = np.frombuffer(content, np.int64)

    def read_state(self, slot: int) -> memoryview:
        return memoryview(self._states[slot].to_bytes(_STATE_BYTES, "big"))

    def write_state(self, slot: int, content: memoryview) -> None:
        self._states[slot] = int.from_bytes(content, "big")

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._cache[list(blocks)] = -1

    def close(self) -> None:
        """Nothing is open."""

    def _likeliest(self, row: Row) -> list[int]:
        if row.num_logits == 0 and row.state is None:
            return []
        end = row.start + len(row.tokens)
        found: npt.NDArray[np.int64] = self._cache[list(row.blocks)].reshape(-1)[:end]
        totals = np.cumsum(found * self._factors[:end] % _PRIME) % _PRIME
        if row.state is not None:
            totals = self._remembered(row, row.state, totals)
        tokens: list[int] = (totals[end - row.num_logits :] % self.vocab_size).tolist()
        return tokens

    def _remembered(
        self, row: Row, state: StateSlots, totals: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """`totals` as far as they go on from the state that is read; writes what follows."""
        before = int(totals[row.start - 1]) if row.start else 0
        read = self._states[state.read] if row.start else 0
        totals = (totals + read - before) % _PRIME
        self._states[state.write] = int(totals[-1])
        if state.snapshot >= 0:
            self._states[state.snapshot] = int(totals[row.start + state.kept - 1])
        return totals


class OverlappingToy(ToyRunner):
    """An `OverlappingRunner`: as by the last of several stages, steps are computed in order, late.

    `max_begun` is how many were in flight at the same time.
    """

    def __init__(self, *args: Any, max_in_flight: int = 3, max_tokens: int = 40) -> None:
        super().__init__(*args)
        self.max_in_flight, self.max_tokens_in_flight = max_in_flight, max_tokens
        self.max_begun = 0
        self._begun: deque[Step | Logits] = deque()

    def begin(self, step: Step) -> None:
        assert step.num_tokens <= self.max_tokens_in_flight
        rows = tuple(replace(row, blocks=tuple(row.blocks)) for row in step.rows)
        self._begun.append(replace(step, rows=rows))
        self.max_begun = max(self.max_begun, len(self._begun))

    def finish(self) -> Logits:
        first = self._begun.popleft()
        return super().run(first) if isinstance(first, Step) else first

    def run(self, step: Step) -> Logits:
        assert not self._begun
        return super().run(step)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._begun = deque(
            super(OverlappingToy, self).run(entry) if isinstance(entry, Step) else entry
            for entry in self._begun
        )
        super().release_blocks(blocks)


def open_runner(directory: str | Path, config: EngineConfig) -> ToyRunner:
    """A toy with the cache that `config` asks for (8 bytes per token); `directory` is not read.

    Raises StartError if the memory is not enough for one block, or weights are to be quantised.
    """
    block_bytes = config.block_size * _BYTES_PER_TOKEN
    memory = config.kv_cache_memory or 64 * block_bytes
    if memory < block_bytes:
        raise StartError(f"kv_cache_memory is {memory}, expected at least {block_bytes}")
    if config.quantization is not None:
        raise StartError(f"quantization is {config.quantization!r}: the toy has no weights")
    longest = config.max_model_len or 256
    return ToyRunner(memory // block_bytes, config.block_size, max_model_len=longest)


RUNTIMES["toy"] = Runtime("tests.llm.toy:open_runner")
