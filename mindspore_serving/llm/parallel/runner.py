"""Rank 0 of a model over ranks: a runner that has the other ranks compute each step with it.

Every rank computes the same steps in the same order, and refuses the same ones before anything is
exchanged.  Any other failure of one rank ends all of them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.encrypted import key_text
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.expert_counts import RankExperts, experts_of, gather_counts
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.messages import (
    Compute,
    FromStore,
    GatherCounts,
    LoadRank,
    ReleaseBlocks,
    compute,
)
from mindspore_serving.llm.parallel.processes import Ranks, start_ranks
from mindspore_serving.llm.parallel.rank_blocks import RankBlocks
from mindspore_serving.llm.step import (
    BestLogits,
    ChoosingRunner,
    EmbeddingRunner,
    Logits,
    OverlappingRunner,
    RunnerLost,
    Step,
    StoringRunner,
    Vectors,
)
from mindspore_serving.process.channel import encode

PATIENCE = 10.0  # seconds without a heartbeat after which a rank is lost
GATHER_STEPS = 64  # steps between two gatherings of the counts of experts, at first fewer
LOAD_PATIENCE = 120.0  # the same while it loads: reading from a slow disk stops the heartbeats

T = TypeVar("T")
OpenRank: TypeAlias = Callable[[str | Path, str, EngineConfig, Links], EmbeddingRunner]
"""Opens the part of a model that the rank with these links holds."""


class ParallelRunner:
    """An `EmbeddingRunner` over `local`, the runner of rank 0, and the other ranks.

    It is a `ChoosingRunner`, an `OverlappingRunner` or a `StoringRunner` if `local` is one.
    `layout` says how ranks divide the model.
    """

    def __init__(
        self, local: EmbeddingRunner, links: Links, ranks: Ranks, layout: str = ""
    ) -> None:
        self.block_size = local.block_size
        self.num_blocks = local.num_blocks
        self.num_slots = local.num_slots
        self.vocab_size = local.vocab_size
        self.max_model_len = local.max_model_len
        self.adapters = local.adapters
        self.hidden_size = local.hidden_size
        self.rope_switch = local.rope_switch
        self.cache_memory = local.cache_memory
        self.max_best: int = getattr(local, "max_best", 0)
        self.max_in_flight: int = getattr(local, "max_in_flight", 1)
        self.max_tokens_in_flight: int = getattr(local, "max_tokens_in_flight", 0)
        self._experts = experts_of(local)
        self._local = local
        self._links = links
        self._ranks = ranks
        self._layout = layout
        self._num_steps = 0
        self._num_begun = 0  # steps that are not finished
        self._logits: deque[Logits] = deque()  # of the steps before these, if they had to end early
        self._lost: RunnerLost | None = None

    def run(self, step: Step) -> Logits:
        return self._run_on_all(step, self._local.run)

    def begin(self, step: Step) -> None:
        self._run_on_all(step, cast(OverlappingRunner, self._local).begin, is_alone=False)
        self._num_begun += 1

    def finish(self) -> Logits:
        if self._logits:
            return self._logits.popleft()
        if self._lost is not None:
            raise self._lost
        self._num_begun -= 1
        try:
            return cast(OverlappingRunner, self._local).finish()
        except Exception as error:
            raise self._lose(str(error)) from error

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all ranks."""
        return self._blocks.block_bytes

    @property
    def block_format(self) -> str:
        """Format of the contents in all ranks, with their layout."""
        return f"{self._blocks.block_format}\0{self._layout}"

    def read_block(self, block: int) -> memoryview:
        return self._with_blocks(lambda blocks: blocks.read(block))

    def write_block(self, block: int, content: memoryview) -> None:
        self._with_blocks(lambda blocks: blocks.write(block, content))

    @property
    def state_bytes(self) -> int:
        """Bytes of the state in a slot of all ranks."""
        return self._blocks.state_bytes

    def read_state(self, slot: int) -> memoryview:
        return self._with_blocks(lambda blocks: blocks.read(slot, is_state=True))

    def write_state(self, slot: int, content: memoryview) -> None:
        self._with_blocks(lambda blocks: blocks.write(slot, content, is_state=True))

    def embed(self, step: Step) -> Vectors:
        return self._run_on_all(step, self._local.embed, embeds=True)

    def run_best(self, step: Step, count: int) -> BestLogits:
        local = cast(ChoosingRunner, self._local)
        return self._run_on_all(step, lambda step: local.run_best(step, count), best=count)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._send_to_ranks(ReleaseBlocks(list(blocks)))
        self._local.release_blocks(blocks)

    def count_experts(self) -> tuple[int, int]:
        """Return the tokens of experts, and those of the most loaded rank of every layer."""
        if self._experts is None:
            return 0, 0
        if not self._experts.is_divided:
            self._experts.gather()
        return self._experts.loads()

    def close(self) -> None:
        """End all ranks; none has anything to finish."""
        if self._experts is not None:
            self.count_experts()
            self._experts.save()
        self._ranks.close()
        self._links.close()
        self._local.close()

    def _run_on_all(
        self,
        step: Step,
        compute_local: Callable[[Step], T],
        *,
        embeds: bool = False,
        best: int = 0,
        is_alone: bool = True,
    ) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            if is_alone:
                self._end_steps()
            self._num_steps += 1
            self._links.begin(self._num_steps)
            self._send_to_ranks(compute(self._num_steps, step, embeds=embeds, best=best))
            result = compute_local(step)
            # A step that is begun sends its logits first, so its counts wait.
            if self._experts is not None and is_alone and _gathers(self._num_steps):
                self._gather_counts(self._experts)
            return result
        except Exception as error:
            is_refused = isinstance(error, ServingError) and not isinstance(error, RunnerLost)
            if is_refused and not self._links.has_exchanged:
                raise  # the other ranks refuse the step as well
            raise self._lose(str(error)) from error

    def _gather_counts(self, experts: RankExperts) -> None:
        if experts.is_divided:
            self._send_to_ranks(GatherCounts())
        gather_counts(self._local, experts)
        experts.save_at_intervals()

    def _end_steps(self) -> None:
        """Keep the logits of all steps that are begun."""
        while self._num_begun > 0:
            self._num_begun -= 1
            self._logits.append(cast(OverlappingRunner, self._local).finish())

    @cached_property
    def _blocks(self) -> RankBlocks:
        return RankBlocks(cast(StoringRunner, self._local), self._links, self._send_to_ranks)

    def _with_blocks(self, function: Callable[[RankBlocks], T]) -> T:
        """Call `function` when no rank computes: one could wait for this one to read logits."""
        if self._lost is not None:
            raise self._lost
        try:
            self._end_steps()
            if hasattr(self._local, "settle"):
                self._local.settle()
            return function(self._blocks)
        except Exception as error:
            raise self._lose(str(error)) from error

    def _send_to_ranks(
        self, message: Compute | ReleaseBlocks | GatherCounts | FromStore, rank: int | None = None
    ) -> None:
        """Send a message to all ranks, or to the process that reaches `rank`."""
        frame, processes = encode(message), self._ranks.processes
        if rank is not None:
            processes = [process for process in processes if process.rank <= rank][-1:]
        for process in processes:
            try:
                process.channel.write(frame)
            except OSError as error:
                raise RunnerLost(f"rank {process.rank} cannot be reached: {error}") from error

    def _lose(self, text: str) -> RunnerLost:
        """End all ranks; return the error to raise from now on."""
        self._lost = RunnerLost(f"all ranks have been ended: {text}{self._ranks.cause()}")
        self._ranks.close()
        return self._lost


def _gathers(num_steps: int) -> bool:
    """Return whether counts are gathered after so many steps: after 1, 2, 4, ... and then often."""
    return num_steps % GATHER_STEPS == 0 or num_steps & (num_steps - 1) == 0


def open_ranks(
    directory: str | Path,
    runtime: str,
    config: EngineConfig,
    open_rank: OpenRank,
    on_ready: Callable[[int], None] = lambda rank: None,
) -> ParallelRunner:
    """Open the model in `directory` over `config.num_ranks` ranks, this process being rank 0.

    `on_ready` is called with each rank that has loaded.  Raises StartError if a rank refuses the
    model or ends while it loads; then no rank is left.
    """
    size = config.num_ranks
    try:
        links, ranks = start_ranks(size)
    except OSError as error:
        raise StartError(f"{size} ranks cannot be started: {error}") from error
    links.patience = LOAD_PATIENCE
    local: EmbeddingRunner | None = None
    try:
        for process in ranks.processes:
            load = LoadRank(str(directory), runtime, asdict(config), key_text())
            process.channel.send(load)
        local = open_rank(directory, runtime, config, links)
        on_ready(0)
        ranks.wait_until_ready()
        for process in ranks.processes:
            on_ready(process.rank)
    except BaseException as error:
        is_lost = isinstance(error, RunnerLost | OSError)
        cause = ranks.cause() if is_lost else ""
        ranks.close()
        links.close()
        if local is not None:
            local.close()
        if is_lost:
            raise StartError(f"the model cannot be loaded over ranks: {error}{cause}") from error
        raise
    links.patience = PATIENCE
    layout = (
        f"{config.tensor_parallel} {config.pipeline_parallel} {config.stage_layers} "
        f"{config.expert_parallel}"
    )
    return ParallelRunner(local, links, ranks, layout)
