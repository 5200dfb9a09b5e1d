"""The part of a model that a process holds: all of it, a cut of every layer, or some layers.

Decided once, before a runtime loads anything; knows no runtime.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized.methods import SCALED, quantization_of
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint, cut_spec


@dataclass(frozen=True, slots=True)
class RankPart:
    """`spec` has the sizes of this part.  `grid` is of the ranks that share the model, `exchange`
    of those that share its layers.
    """

    spec: ModelSpec
    decoder: Decoder
    checkpoint: Checkpoint
    grid: Grid | None = None
    exchange: RankExchange | None = None

    @property
    def size(self) -> int:
        return 1 if self.grid is None else self.grid.everyone.size

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        return number if self.grid is None else self.grid.everyone.least(number)


def open_part(directory: str | Path, config: EngineConfig, grid: Grid | None = None) -> RankPart:
    """What this process holds of the model in `directory`; all without a grid.  No weight is read
    yet.  Raises StartError: a broken or unknown checkpoint, a model that cannot be cut so.
    """
    checkpoint, spec, decoder = open_definition(directory, max_model_len=config.max_model_len)
    if config.has_adapters and quantization_of(checkpoint.config).get(SCALED):
        raise StartError(
            f"{directory} was calibrated, which has scaled what LoRA adapters multiply: leave "
            "adapters and max_loras out, or quantise the model without --calibrate"
        )
    if grid is None:
        return RankPart(spec, decoder, checkpoint)
    if spec.architecture.takes_images and config.max_images:
        raise StartError(
            f"{parallel_text(config)}, but vectors of images are not sent to "
            "ranks: leave it out, or give max_images=0 to serve the model for texts"
        )
    stages, peers, exchange = grid.stages, grid.peers, None
    own = cut_layers(spec, stages.rank, stages.size) if stages.size > 1 else spec
    if peers.size > 1:
        exchange = RankExchange(peers, spec.vocab_size)
        checkpoint = ShardedCheckpoint(checkpoint, spec, Shard(peers.rank, peers.size))
        own = cut_spec(own, peers.size)
    return RankPart(own, decoder, checkpoint, grid, exchange)


def cut_layers(spec: ModelSpec, rank: int, size: int) -> ModelSpec:
    """With the layers of one of `size` stages.  Raises StartError if there are too few,
    or some that stages cannot compute.
    """
    if spec.state is not None:
        raise StartError(
            f"pipeline_parallel is {size}, but {spec.architecture_name} has layers with a state "
            "beside keys and values, which stages do not keep; leave it out"
        )
    if spec.is_connected:
        raise StartError(
            f"pipeline_parallel is {size}, but {spec.architecture_name} has layers that share keys "
            "and values or have inputs of their own, which stages do not send; leave it out"
        )
    if spec.num_layers < size:
        raise StartError(
            f"pipeline_parallel is {size}, expected at most {spec.num_layers}: so many layers has "
            "the model"
        )
    own = Shard(rank, size).of(spec.num_layers)
    return replace(spec, layers=range(own.begin, own.end))


def share_options(config: EngineConfig, num_threads: int | None = None) -> EngineConfig:
    """The options of one rank, from those of all together.

    Ranks that share every layer compute at the same time and share the threads, `num_threads` if
    the option is not given; stages follow each other, and each has all of them.
    Raises StartError: what no rank can do.
    """
    if config.has_adapters:
        raise StartError(
            f"{parallel_text(config)}, but LoRA adapters are not cut over ranks: "
            "leave adapters and max_loras out, or merge the adapter into the checkpoint"
        )
    memory = config.kv_cache_memory and config.kv_cache_memory // config.num_ranks
    threads = config.num_threads
    if config.tensor_parallel > 1:
        found = threads or num_threads or len(os.sched_getaffinity(0))
        threads = max(1, found // config.tensor_parallel)
    return replace(config, num_threads=threads, kv_cache_memory=memory)


def parallel_text(config: EngineConfig) -> str:
    """By which options there are ranks, as the beginning of an error."""
    names = ("tensor_parallel", "pipeline_parallel")
    given = {name: getattr(config, name) for name in names}
    return " and ".join(f"{name} is {size}" for name, size in given.items() if size > 1)
