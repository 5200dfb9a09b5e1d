"""Rank 0 of a model over ranks: a runner that has the other ranks compute each step with it.

Every rank computes the same steps in the same order, and refuses the same ones before anything is
exchanged.  Whatever else goes wrong on one rank ends all of them.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.messages import LoadRank, compute
from mindspore_serving.llm.parallel.processes import Ranks, start_ranks
from mindspore_serving.llm.step import EmbeddingRunner, Logits, RunnerLost, Step, Vectors
from mindspore_serving.process.channel import encode

PATIENCE = 10.0  # seconds without a heartbeat after which a rank is lost
LOAD_PATIENCE = 120.0  # the same while it loads: reading a tensor from a slow disk stops them

OpenRank: TypeAlias = Callable[[str | Path, str, EngineConfig, Links], EmbeddingRunner]
"""Opens the part of a model that the rank with these links holds."""


class ParallelRunner:
    """An `EmbeddingRunner` over `own`, the runner of rank 0, and the other ranks."""

    def __init__(self, own: EmbeddingRunner, links: Links, ranks: Ranks) -> None:
        self.block_size = own.block_size
        self.num_blocks = own.num_blocks
        self.num_slots = own.num_slots
        self.vocab_size = own.vocab_size
        self.max_model_len = own.max_model_len
        self.adapters = own.adapters
        self.hidden_size = own.hidden_size
        self.rope_switch = own.rope_switch
        self._own = own
        self._links = links
        self._ranks = ranks
        self._num_steps = 0
        self._lost: RunnerLost | None = None

    def run(self, step: Step) -> Logits:
        return self._together(step, self._own.run, embeds=False)

    def embed(self, step: Step) -> Vectors:
        return self._together(step, self._own.embed, embeds=True)

    def close(self) -> None:
        """End all ranks; none has anything to finish."""
        self._ranks.close()
        self._links.close()
        self._own.close()

    def _together(
        self, step: Step, compute_own: Callable[[Step], Logits], *, embeds: bool
    ) -> Logits:
        if self._lost is not None:
            raise self._lost
        try:
            self._send(step, embeds=embeds)
            return compute_own(step)
        except Exception as error:
            is_refused = isinstance(error, ServingError) and not isinstance(error, RunnerLost)
            if is_refused and not self._links.has_exchanged:
                raise  # and so it is by the others
            raise self._lose(str(error)) from error

    def _send(self, step: Step, *, embeds: bool) -> None:
        self._num_steps += 1
        self._links.begin(self._num_steps)
        frame = encode(compute(self._num_steps, step, embeds=embeds))
        for process in self._ranks.processes:
            try:
                process.channel.write(frame)
            except OSError as error:
                raise RunnerLost(f"rank {process.rank} takes no step: {error}") from error

    def _lose(self, text: str) -> RunnerLost:
        """End all ranks; what is raised from now on."""
        self._lost = RunnerLost(f"the ranks are ended: {text}{self._ranks.cause()}")
        self._ranks.close()
        return self._lost


def open_ranks(
    directory: str | Path,
    runtime: str,
    config: EngineConfig,
    open_rank: OpenRank,
    on_ready: Callable[[int], None] = lambda rank: None,
) -> ParallelRunner:
    """The model in `directory` over `config.num_ranks` ranks, of which this process is one.

    `on_ready` is called with each rank that has loaded.  Raises StartError: what one rank refuses,
    a rank that ends while it loads; no rank is left.
    """
    size = config.num_ranks
    try:
        links, ranks = start_ranks(size)
    except OSError as error:
        raise StartError(f"{size} ranks cannot be started: {error}") from error
    links.patience = LOAD_PATIENCE
    try:
        for process in ranks.processes:
            load = LoadRank(str(directory), runtime, asdict(config))
            process.channel.send(load)
        own = open_rank(directory, runtime, config, links)
        on_ready(0)
        ranks.wait_until_ready()
        for process in ranks.processes:
            on_ready(process.rank)
    except BaseException as error:
        is_lost = isinstance(error, RunnerLost | OSError)
        cause = ranks.cause() if is_lost else ""
        ranks.close()
        links.close()
        if is_lost:
            raise StartError(f"the model cannot be loaded over ranks: {error}{cause}") from error
        raise
    links.patience = PATIENCE
    return ParallelRunner(own, links, ranks)
