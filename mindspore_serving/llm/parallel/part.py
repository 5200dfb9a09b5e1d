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
from mindspore_serving.llm.models import Decoder, load_definition
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.exchange import Exchange
from mindspore_serving.llm.parallel.group import Group
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint, cut_spec


@dataclass(frozen=True, slots=True)
class Part:
    """`spec` has the sizes of this part.  `group` is of the ranks that share the model; with an
    `exchange` they share every layer, else each has layers of its own."""

    spec: ModelSpec
    decoder: Decoder
    checkpoint: Checkpoint
    group: Group | None = None
    exchange: Exchange | None = None

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        return number if self.group is None else self.group.least(number)


def open_part(directory: str | Path, config: EngineConfig, group: Group | None = None) -> Part:
    """What this process holds of the model in `directory`; all without a group.  No weight is read
    yet.  Raises StartError: a broken or unknown checkpoint, a model that cannot be cut so."""
    checkpoint = open_arranged(directory)
    if config.has_adapters and quantization_of(checkpoint.config).get(SCALED):
        raise StartError(
            f"{directory} was calibrated, which has scaled what LoRA adapters multiply: leave "
            "adapters and max_loras out, or quantise the model without --calibrate"
        )
    spec, decoder = load_definition(checkpoint.config, max_model_len=config.max_model_len)
    if group is None:
        return Part(spec, decoder, checkpoint)
    if spec.form.has_pictures and config.max_images:
        raise StartError(
            f"{parallel_option(config)} is {group.size}, but vectors of pictures are not sent to "
            "ranks: leave it out, or give max_images=0 to serve the model for texts"
        )
    if config.pipeline_parallel > 1:
        return Part(cut_layers(spec, group.rank, group.size), decoder, checkpoint, group)
    exchange = Exchange(group, spec.vocab_size)
    checkpoint = ShardedCheckpoint(checkpoint, spec, Shard(group.rank, group.size))
    return Part(cut_spec(spec, group.size), decoder, checkpoint, group, exchange)


def cut_layers(spec: ModelSpec, rank: int, size: int) -> ModelSpec:
    """With the layers of one of `size` stages.  Raises StartError if there are too few,
    or some that stages cannot compute."""
    if spec.state is not None:
        raise StartError(
            f"pipeline_parallel is {size}, but {spec.architecture} has layers with a state beside "
            "keys and values, which stages do not keep; leave it out"
        )
    if spec.is_connected:
        raise StartError(
            f"pipeline_parallel is {size}, but {spec.architecture} has layers that share keys and "
            "values or have inputs of their own, which stages do not send; leave it out"
        )
    if spec.num_layers < size:
        raise StartError(
            f"pipeline_parallel is {size}, expected at most {spec.num_layers}: so many layers has "
            "the model"
        )
    own = Shard(rank, size).of(spec.num_layers)
    return replace(spec, layers=range(own.begin, own.end))


def share_options(config: EngineConfig, size: int, num_threads: int | None = None) -> EngineConfig:
    """The options of one of `size` ranks, from those of all together.

    Ranks that share every layer compute at the same time and share the threads, `num_threads` if
    the option is not given; stages follow each other, and each has all of them.
    Raises StartError: what no rank can do.
    """
    if config.has_adapters:
        raise StartError(
            f"{parallel_option(config)} is {size}, but LoRA adapters are not cut over ranks: "
            "leave adapters and max_loras out, or merge the adapter into the checkpoint"
        )
    memory = config.kv_cache_memory and config.kv_cache_memory // size
    threads = config.num_threads
    if config.tensor_parallel > 1:
        found = threads or num_threads or len(os.sched_getaffinity(0))
        threads = max(1, found // size)
    return replace(config, num_threads=threads, kv_cache_memory=memory)


def parallel_option(config: EngineConfig) -> str:
    """The name of the option by which there are ranks."""
    return "pipeline_parallel" if config.pipeline_parallel > 1 else "tensor_parallel"
