"""Language models on CPUs by OpenVINO: the default runtime.

A definition is built into one graph with paged attention.  Weights stay in the mapped checkpoint
until the plugin packs them at the first pass; keys and values are in numpy arrays.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov

from mindspore_serving import loading, log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized.methods import OURS, describe, quantization_of
from mindspore_serving.llm.checkpoint.safetensors import map_now
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.part import RankPart, open_part, rank_options
from mindspore_serving.llm.runtimes.adapters import Base, read_changes
from mindspore_serving.llm.runtimes.capacity import longest_sequence
from mindspore_serving.llm.runtimes.openvino.attention import check_paged_attention
from mindspore_serving.llm.runtimes.openvino.fusion import (
    fusible,
    is_fused_here,
    narrow,
    num_fused,
    widens_integers,
)
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import (
    PluginOptions,
    capabilities,
    options_from,
    with_matrices,
)
from mindspore_serving.llm.runtimes.openvino.ranks import OpenVINORankOps, RankSums
from mindspore_serving.llm.runtimes.openvino.repacking import joins, order_of_packing, packed_once
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
from mindspore_serving.llm.runtimes.openvino.states_check import check_states
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights


def open_runner(
    directory: str | Path, config: EngineConfig, *, properties: Mapping[str, Any] | None = None
) -> OpenVINORunner:
    """The model in `directory`, compiled, its weights packed and its common sizes warmed up.

    Of `config`: `dtype` and `kv_cache_dtype` as `options_from` says; `quantization` "int8" or
    "int4" for a float checkpoint (one that is quantised already takes half the memory to load);
    `kv_cache_memory`, by default half of the free memory, at most 32 GiB and what `max_num_seqs`
    longest sequences need.  `properties` override those of the plugin.

    Raises StartError: an option that it does not have, a broken or unknown checkpoint, no memory,
    an openvino whose paged attention computes something else.
    """
    return _open(open_part(directory, config), config, properties)


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> OpenVINORunner:
    """The part of the model that this rank of `grid` holds; as `open_runner`."""
    config = rank_options(config)
    part = open_part(directory, config, grid)
    if part.exchange is not None:
        _check_floats(part, config)
    return _open(part, config)


def _check_floats(part: RankPart, config: EngineConfig) -> None:
    stored = describe(part.checkpoint.config).text or quantization_of(part.checkpoint.config)
    if stored or config.quantization:
        raise StartError(
            f"tensor_parallel is {config.tensor_parallel}, but the openvino runtime cuts matrices "
            "of floats alone, and these are quantised: take the float checkpoint without "
            "quantization, or pipeline_parallel alone, or the torch runtime, which widens them"
        )


def _open(
    part: RankPart, config: EngineConfig, properties: Mapping[str, Any] | None = None
) -> OpenVINORunner:
    checkpoint, spec = part.checkpoint, part.spec
    options = _checked_options(part, config)
    # Quantised weights of others are computed as they say, where f32 is asked for.
    is_foreign = quantization_of(checkpoint.config).get("quant_method") not in (None, OURS)
    is_exact = is_foreign and config.dtype == "f32"
    weights = _weights(part, config, options, is_exact=is_exact)
    sums = None if part.exchange is None else RankSums(part.exchange)
    ops = _ops_of(part, config, weights, sums)
    model = build_model(ops, part)
    loading.reached(0.3)
    _tell_widened(weights, checkpoint, options)
    _let_go(checkpoint, weights)
    compiled = _compiled(model, weights, options, is_exact=is_exact, given=properties or {})
    base = Base(spec, ops.ports.shapes, checkpoint.f32) if ops.ports else None
    changes = read_changes(config, base)
    runner = OpenVINORunner(compiled, part, config, weights, base=base, sums=sums)
    if not is_fused_here():
        checkpoint.release()  # the plugin computes with its own copy; rows are read again
    for adapter, one in changes.items():
        runner.load_adapter(adapter, one)
    return runner


def _checked_options(part: RankPart, config: EngineConfig) -> PluginOptions:
    """Raises StartError for what would be found late, or not at all: operations that this openvino
    computes otherwise, a length beyond the model's.
    """
    options, state = options_from(config, capabilities(config.num_threads)), part.spec.state
    check_paged_attention(has_types=_sees_whole_pictures(part, config))
    if state:
        options = with_matrices(options, config) if state.heads else options
        check_states(options.precision)
    longest_sequence(config, part.spec)
    return options


def _sees_whole_pictures(part: RankPart, config: EngineConfig) -> bool:
    return part.spec.form.sees_pictures_whole and config.max_images > 0


def _weights(
    part: RankPart, config: EngineConfig, options: PluginOptions, *, is_exact: bool
) -> OpenVINOWeights:
    checkpoint = part.checkpoint
    is_mapped = is_fused_here() and "mode" in quantization_of(checkpoint.config)  # see `_let_go`
    return OpenVINOWeights(
        checkpoint,
        options.precision,
        _bits_to_quantise(config, checkpoint, options),
        is_exact=is_exact or widens_integers(options.precision),
        gathers=True,
        joins=None if is_mapped else partial(joins, options),
    )


def _ops_of(
    part: RankPart, config: EngineConfig, weights: OpenVINOWeights, sums: RankSums | None
) -> OpenVINOOps:
    """With the inputs that the model and `config` need; `sums` are those over ranks."""
    spec, switches = part.spec, bool(part.spec.rope.switch)
    if sums is not None:
        return OpenVINORankOps(weights, sums, switches=switches)
    return OpenVINOOps(
        weights,
        adapts=config.has_adapters,
        num_features=spec.hidden_size if spec.form.has_pictures and config.max_images else 0,
        switches=switches,
        has_types=_sees_whole_pictures(part, config),
    )


def _compiled(
    model: ov.Model,
    weights: OpenVINOWeights,
    options: PluginOptions,
    *,
    is_exact: bool,
    given: Mapping[str, Any],
) -> Any:
    """The graph, compiled with `options` and then the properties `given`; `weights.constants` get
    the arrays that the plugin refers to, and those that it has no use of once they are packed.
    """
    constants = weights.constants
    blocks = fusible(model) if options.precision == "bf16" and is_fused_here() else []
    by_rows = not constants.is_grouped and any(block.is_int8 for block in blocks)
    properties = options.properties(constants.group, is_exact=is_exact, by_rows=by_rows)
    halves = narrow(blocks)
    constants.kept += halves
    properties |= given
    compiled = compile_graph(model, properties)
    if num_fused(compiled) == len(blocks):
        constants.unpacked += halves
    spent = packed_once(weights, properties)
    constants.unpacked += spent.values()
    constants.early = order_of_packing(model, spent)
    return compiled


def _let_go(checkpoint: Checkpoint, weights: OpenVINOWeights) -> None:
    """The pages of the file that were read, unless the plugin may compute with them, as it does
    with AMX and integers of ours.
    """
    if weights.constants.spent:
        checkpoint.release()  # what is needed of it is decoded, or read once more
    elif weights.constants.group and is_fused_here():
        map_now(weights.constants.kept)


def build_model(ops: OpenVINOOps, part: RankPart) -> ov.Model:
    """The graph of the layers of `part`.  Raises StartError: weights that do not fit."""
    spec = part.spec
    inputs = ops.inputs if spec.is_first else ops.stage_inputs(spec.hidden_size)
    found = part.decoder(ops, spec, inputs)
    if not spec.is_last:
        return ops.graph_of({"hidden": found})
    width = spec.vocab_size if part.exchange is None else part.exchange.rows.count
    return ops.model(found, width)


def _tell_widened(weights: OpenVINOWeights, checkpoint: Checkpoint, options: PluginOptions) -> None:
    """Log what the line about the model does not say."""
    is_kept = describe(checkpoint.config).is_kept
    if is_kept and weights.widened:
        log.warning(
            "%d quantised matrices of %s are widened to %s, the first %r: groups of different "
            "sizes, a code without kernels, or experts that are reordered or not quantised alike",
            len(weights.widened), checkpoint.directory.name, options.precision, weights.widened[0],
        )  # fmt: skip


def _bits_to_quantise(
    config: EngineConfig, checkpoint: Checkpoint, options: PluginOptions
) -> int | None:
    stored = quantization_of(checkpoint.config).get("mode") or describe(checkpoint.config).text
    if not stored:
        if options.bits is not None:
            log.warning(
                "quantising %s to %s while loading takes long, and memory for both; "
                "`python -m mindspore_serving.llm.quantize` does it once",
                checkpoint.directory.name,
                config.quantization,
            )
        elif not options.has_bf16 and config.dtype == "auto":
            log.warning(
                "this processor has no bf16: %s computes in f32; `mindspore-serving quantize` to "
                "int8 halves its memory and its time, to float16 saves a little time alone",
                checkpoint.directory.name,
            )
        return options.bits
    if config.quantization not in (None, stored):
        raise StartError(
            f"quantization is {config.quantization!r}, but {checkpoint.directory} is quantised to "
            f"{stored} already; take the float checkpoint, or leave it out"
        )
    return None


def compile_graph(model: ov.Model, properties: Mapping[str, Any]) -> Any:
    """Raises StartError with the plugin's words."""
    try:
        return ov.Core().compile_model(model, "CPU", dict(properties))
    except RuntimeError as error:
        raise StartError(f"openvino cannot compile the model: {error}") from error
