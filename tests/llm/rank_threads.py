"""Ranks of one model as threads of this process: fast to start, the same exchanges."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.messages import Compute, compute
from mindspore_serving.llm.parallel.processes import connect_ranks
from mindspore_serving.llm.runtimes import open_rank
from mindspore_serving.llm.step import EmbeddingRunner, Logits, Step, Vectors

_DECODER = msgspec.msgpack.Decoder(Compute)


@contextmanager
def links(size: int) -> Iterator[list[Links]]:
    """Those of `size` ranks, closed in the end."""
    peers = connect_ranks(size)
    memory = create_memory(size)
    made = [Links(rank, peers[rank], memory) for rank in range(size)]
    os.close(memory)
    try:
        yield made
    finally:
        for one in made:
            one.close()


class Ranks:
    """A runner whose ranks are threads, which get steps as messages; the result is rank 0's."""

    def __init__(
        self, directory: Path, runtime: str, config: EngineConfig, own: list[Links]
    ) -> None:
        self._links = own
        self._threads = [ThreadPoolExecutor(1) for _ in own]
        opened = [
            thread.submit(open_rank, directory, runtime, config, one)
            for thread, one in zip(self._threads, own, strict=True)
        ]
        self.runners = [one.result() for one in opened]
        first = self.runners[0]
        self.block_size, self.num_blocks = first.block_size, first.num_blocks
        self.vocab_size, self.max_model_len = first.vocab_size, first.max_model_len
        self.adapters, self.hidden_size = first.adapters, first.hidden_size
        self.num_slots, self.rope_switch = first.num_slots, first.rope_switch
        self.cache_memory = first.cache_memory
        self._num_steps = 0

    def run(self, step: Step) -> Logits:
        return self._all(step, "run")

    def embed(self, step: Step) -> Vectors:
        return self._all(step, "embed")

    def release_blocks(self, blocks: Sequence[int]) -> None:
        for runner, thread in zip(self.runners, self._threads, strict=True):
            thread.submit(runner.release_blocks, blocks).result()

    def each(self) -> Iterator[tuple[EmbeddingRunner, ThreadPoolExecutor]]:
        """Every rank's runner and its thread, to do what all ranks do together."""
        return zip(self.runners, self._threads, strict=True)

    def close(self) -> None:
        for runner, thread in zip(self.runners, self._threads, strict=True):
            runner.close()
            thread.shutdown()

    def _all(self, step: Step, method: str) -> Logits:
        self._num_steps += 1
        for one in self._links:
            one.begin(self._num_steps)
        sent = msgspec.msgpack.encode(compute(self._num_steps, step))
        steps = [step] + [_DECODER.decode(sent).step() for _ in self.runners[1:]]
        computed = [
            thread.submit(getattr(runner, method), step)
            for thread, runner, step in zip(self._threads, self.runners, steps, strict=True)
        ]
        return [one.result() for one in computed][0]


@contextmanager
def ranks(
    directory: Path, size: int, runtime: str = "torch", *, by: str = "tensor_parallel",
    **options: object,
) -> Iterator[Ranks]:  # fmt: skip
    """The model in `directory` over `size` threads, cut `by` an option of the engine."""
    given = {"device": "cpu", "kv_cache_memory": size * 2**20, by: size, "dtype": "f32"} | options
    if runtime == "torch":
        given = {"block_size": 8} | given
    config = EngineConfig(**given)  # type: ignore[arg-type]
    with links(config.num_ranks) as own:
        runner = Ranks(directory, runtime, config, own)
        try:
            yield runner
        finally:
            runner.close()
