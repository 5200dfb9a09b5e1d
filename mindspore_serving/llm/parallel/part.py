"""Part of a model that a process holds: all of it, a cut of every layer, or some layers.

Decided once, before a runtime loads anything; knows no runtime.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized.methods import SCALED, quantization_of, read_config
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import Decoder, load_definition
from mindspore_serving.llm.models.decoder import eagle, predictor
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.prediction import (
    FUSION,
    eagle_layers,
    eagle_spec,
    eagle_tensors,
    find_head,
    head_spec,
    is_eagle,
    layers_for_head,
)
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.expert_counts import RankExperts
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint, check_experts, cut_spec
from mindspore_serving.llm.step import Features


@dataclass(frozen=True, slots=True)
class RankPart:
    """Part of a model that this process computes.

    `spec` has the sizes of this part.  `grid` has the ranks that share the model, `exchange` those
    that share its layers, and `experts` which of them has which expert, if that is whole.
    """

    spec: ModelSpec
    decoder: Decoder
    checkpoint: Checkpoint
    grid: Grid | None = None
    exchange: RankExchange | None = None
    experts: RankExperts | None = None

    @property
    def size(self) -> int:
        """Number of ranks that share the model."""
        return 1 if self.grid is None else self.grid.everyone.size

    def share_features(self, features: Features | None) -> Features | None:
        """Return the features of a step; ranks that share the first layers get those of rank 0."""
        if features is None or self.exchange is None or not self.spec.is_first:
            return features
        vectors = self.exchange.share(features.vectors, self.spec.image_features)
        return replace(features, vectors=vectors)

    def minimum(self, number: int) -> int:
        """Return the minimum of all ranks' numbers."""
        return number if self.grid is None else self.grid.everyone.minimum(number)


def open_part(directory: str | Path, config: EngineConfig, grid: Grid | None = None) -> RankPart:
    """Return the part of the model in `directory` for this process; all of it without a grid.

    No weight is read yet.  Raises StartError for a broken or unknown checkpoint, and for a model
    that cannot be cut so.
    """
    checkpoint, spec, decoder = open_definition(directory, max_model_len=config.max_model_len)
    if config.has_adapters and quantization_of(checkpoint.config).get(SCALED):
        raise StartError(
            f"{directory} was calibrated, which scales the inputs of LoRA adapters: leave "
            "adapters and max_loras out, or quantise the model without --calibrate"
        )
    mixture = check_experts(spec, config.tensor_parallel) if config.expert_parallel else None
    if spec.rope.axes and not config.max_images:  # all positions of a token are equal
        spec = replace(spec, rope=replace(spec.rope, axes=()))
    if config.mtp:
        spec = replace(spec, keeps_hidden=True, kept_layers=layers_for_head(spec))
    head = open_eagle(config)
    if head is not None:
        layers = eagle_layers(head.config, spec.num_layers)
        spec = replace(spec, keeps_hidden=True, kept_layers=layers)
        tensors = {name: checkpoint.stored(name) for name in checkpoint.names()}
        tensors[FUSION] = head.stored(FUSION)
        checkpoint = Checkpoint.of(checkpoint, tensors=tensors)
    if grid is None:
        return RankPart(spec, decoder, checkpoint)
    has_features = spec.architecture.has_features(config.max_images, config.max_audios)
    if spec.image_levels and has_features and grid.stages.size > 1:
        _check_images(spec, config)
    stages, peers, exchange, experts = grid.stages, grid.peers, None, None
    part = spec
    if stages.size > 1:
        part = cut_layers(spec, stages.rank, stages.size, config.stage_layers)
    if peers.size > 1:
        exchange = RankExchange(peers, spec.vocab_size)
        shard = Shard(peers.rank, peers.size)
        checkpoint = ShardedCheckpoint(
            checkpoint, spec, shard, splits_experts=not config.expert_parallel
        )
        part = cut_spec(part, peers.size, peers.rank)
    if mixture is not None:
        experts = RankExperts(mixture, part.layers, config, grid)
    return RankPart(part, decoder, checkpoint, grid, exchange, experts)


def _check_images(spec: ModelSpec, config: EngineConfig) -> None:
    """Raise StartError if stages other than the first would need the vectors of images."""
    first = cut_layers(spec, 0, config.pipeline_parallel, config.stage_layers).layers
    if len(first) < spec.image_levels:
        raise StartError(
            f"pipeline_parallel is {config.pipeline_parallel}, but the first "
            f"{spec.image_levels} layers add features of images and are to be of the first stage, "
            f"which has {len(first)}: take fewer stages, set stage_layers, or "
            "set max_images=0 to serve the model for texts"
        )


def open_head_part(directory: str | Path, config: EngineConfig) -> RankPart:
    """Return the prediction head of the model in `directory`.

    Raises StartError if it has none, or one that is not known.
    """
    checkpoint, spec, _ = open_definition(directory)
    head = open_eagle(config)
    if head is None:
        return RankPart(head_spec(spec), predictor, find_head(open_converted(directory), spec))
    table = f"{spec.architecture.names.embedding}.weight"
    layer, _ = load_definition({**head.config, "architectures": ["LlamaForCausalLM"]})
    tensors = eagle_tensors(head, f"model.layers.{layer.num_layers}")
    tensors.setdefault("model.embed_tokens.weight", checkpoint.stored(table))
    tensors.setdefault("lm_head.weight", checkpoint.stored("lm_head.weight"))
    rows = tensors["lm_head.weight"].shape[0]
    layer = replace(layer, vocab_size=spec.vocab_size, tied_embeddings=False)
    return RankPart(eagle_spec(layer, rows), eagle, Checkpoint.of(head, tensors=tensors))


def open_eagle(config: EngineConfig) -> Checkpoint | None:
    """Open the EAGLE-3 head that `config.draft` names; return None if it names none."""
    if config.draft is None or not (Path(config.draft) / "config.json").is_file():
        return None
    if not is_eagle(read_config(Path(config.draft))):
        return None
    return Checkpoint.open(config.draft)


def cut_layers(spec: ModelSpec, rank: int, size: int, stage_layers: str = "") -> ModelSpec:
    """Return the spec with the layers of one of `size` stages, by the option `stage_layers`.

    Raises StartError if there are too few.
    """
    if spec.num_layers < size:
        raise StartError(
            f"pipeline_parallel is {size}, expected at most {spec.num_layers}, the number of the "
            "model's layers"
        )
    if not stage_layers:
        layers = Shard(rank, size).of(spec.num_layers)
        return _with_layers(spec, range(layers.begin, layers.end))
    parts = stage_layers.split(":")
    if len(parts) != size or not all(part.isascii() and part.isdecimal() for part in parts):
        raise StartError(
            f"stage_layers is {stage_layers!r}, expected pipeline_parallel={size} numbers, divided "
            "by colons"
        )
    return _with_layers(spec, divide_layers(spec.num_layers, list(map(int, parts)))[rank])


def _with_layers(spec: ModelSpec, layers: range) -> ModelSpec:
    """Return the spec of a stage; it has state slots even if none of its layers has a state."""
    state = spec.state and replace(spec.state, layers=spec.state.layers.intersection(layers))
    return replace(spec, layers=layers, state=state)


def divide_layers(num_layers: int, numbers: Sequence[int]) -> list[range]:
    """Return the layers of each stage, at least one, in relation to `numbers`."""
    ends, total = [0], max(1, sum(numbers))
    for stage in range(1, len(numbers)):
        end = round(num_layers * sum(numbers[:stage]) / total)
        ends.append(min(max(end, ends[-1] + 1), num_layers - (len(numbers) - stage)))
    return [range(begin, end) for begin, end in pairwise([*ends, num_layers])]


def rank_options(
    config: EngineConfig, num_threads: int | None = None, *, takes_adapters: bool = False
) -> EngineConfig:
    """Return the options of one rank, from those of all together.

    Ranks that share every layer compute at the same time and share the threads, `num_threads` if
    the option is not set; stages follow each other, and each has all threads.  Ranks of a runtime
    that `takes_adapters` have their part of adapters that are there at the start.  Raises
    StartError for options that no rank supports.
    """
    if config.max_loras or (config.has_adapters and not takes_adapters):
        raise StartError(
            f"{parallel_text(config)}, but LoRA adapters are not loaded by ranks while they run: "
            "leave max_loras out, or merge the adapter into the checkpoint"
        )
    memory = config.kv_cache_memory and config.kv_cache_memory // config.num_ranks
    threads = config.num_threads
    if config.tensor_parallel > 1:
        total = threads or num_threads or len(os.sched_getaffinity(0))
        threads = max(1, total // config.tensor_parallel)
    return replace(config, num_threads=threads, kv_cache_memory=memory)


def parallel_text(config: EngineConfig) -> str:
    """Return the beginning of an error: the options by which there are ranks."""
    names = ("tensor_parallel", "pipeline_parallel")
    sizes = {name: getattr(config, name) for name in names}
    return " and ".join(f"{name} is {size}" for name, size in sizes.items() if size > 1)
