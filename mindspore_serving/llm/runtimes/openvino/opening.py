"""Opening of language models in OpenVINO, the default runtime on CPUs.

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
from mindspore_serving.llm.checkpoint.safetensors import prefault
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.stage_arrays import received_width
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.part import (
    RankPart,
    open_head_part,
    open_part,
    rank_options,
)
from mindspore_serving.llm.runtimes.adapters import BaseModel, read_changes
from mindspore_serving.llm.runtimes.capacity import longest_sequence
from mindspore_serving.llm.runtimes.layout import SharedCache
from mindspore_serving.llm.runtimes.openvino.attention import check_paged_attention
from mindspore_serving.llm.runtimes.openvino.fusion import (
    computes_integers_as_floats,
    fusible_blocks,
    num_fused,
    plugin_fuses_mlp,
    to_f16,
)
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import (
    PluginOptions,
    options_from,
    with_f32_states,
)
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.ranks import OpenVINORankOps, RankSums
from mindspore_serving.llm.runtimes.openvino.repacking import can_join, packed_once, packing_order
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
from mindspore_serving.llm.runtimes.openvino.states_check import check_states
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights


def open_runner(
    directory: str | Path, config: EngineConfig, *, properties: Mapping[str, Any] | None = None
) -> OpenVINORunner:
    """Open the model in `directory`: compiled, with packed weights and its common sizes warmed up.

    Of `config`: `dtype` and `kv_cache_dtype` as in `options_from`; `quantization` "int8" or "int4"
    for a float checkpoint (a quantised checkpoint needs half the memory to load);
    `kv_cache_memory`, with the default of `capacity.runner_limits`. `properties` override those of
    the plugin.

    Raises StartError: an unsupported option, a broken or unknown checkpoint, not enough memory, an
    openvino release whose paged attention gives other results.
    """
    return _open(open_part(directory, config), config, properties)


def open_head(directory: str | Path, config: EngineConfig) -> OpenVINORunner:
    """Open the prediction head of the model in `directory`, as `open_runner`."""
    return _open(open_head_part(directory, config), config)


def open_shared(directory: str | Path, config: EngineConfig, shared: SharedCache) -> OpenVINORunner:
    """Open the model as `open_runner`, to compute with the cache of another runner.

    Raises StartError if the two have caches of different forms.
    """
    return _open(open_part(directory, config), config, shared=shared)


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> OpenVINORunner:
    """Open the part of the model that this rank of `grid` holds, as `open_runner`."""
    config = rank_options(config, takes_adapters=True)
    part = open_part(directory, config, grid)
    return _open(part, config)


def _open(
    part: RankPart, config: EngineConfig, properties: Mapping[str, Any] | None = None,
    shared: SharedCache | None = None,
) -> OpenVINORunner:  # fmt: skip
    checkpoint, spec = part.checkpoint, part.spec
    options = _checked_options(part, config)
    # With dtype f32, weights quantised by other tools are computed without rounding their inputs.
    is_foreign = quantization_of(checkpoint.config).get("quant_method") not in (None, OURS)
    is_exact = is_foreign and config.dtype == "f32"
    weights = _weights(part, config, options, is_exact=is_exact)
    weights.check = weights.check if shared is None else shared.check
    sums = None if part.exchange is None else RankSums(part.exchange)
    keeps_latent = spec.latent is not None and shared is None and sums is None
    ops = _ops_of(part, config, weights, sums, keeps_latent=keeps_latent)
    model = build_model(ops, part)
    loading.reached(0.3)
    _log_dequantised(weights, checkpoint, options)
    _release_file_pages(checkpoint, weights)
    compiled = _compiled(model, weights, options, is_exact=is_exact, overrides=properties or {})
    base = BaseModel(spec, ops.ports.shapes, checkpoint) if ops.ports else None
    changes = read_changes(config, base)
    runner = OpenVINORunner(compiled, part, config, weights, base=base, sums=sums, shared=shared)
    if not plugin_fuses_mlp():
        checkpoint.release()  # the plugin computes with its own copy; rows are read again
    for adapter, change in changes.items():
        runner.load_adapter(adapter, change)
    return runner


def _checked_options(part: RankPart, config: EngineConfig) -> PluginOptions:
    """Return the plugin's options, after the checks that would otherwise fail late or never.

    Raises StartError: operations that this openvino release computes differently, a length beyond
    the model's.
    """
    options, state = options_from(config, capabilities(config.num_threads)), part.spec.state
    check_paged_attention(has_types=_has_bidirectional_images(part, config))
    if state:
        options = with_f32_states(options, config) if state.heads else options
        check_states(options.precision)
    longest_sequence(config, part.spec)
    return options


def _has_bidirectional_images(part: RankPart, config: EngineConfig) -> bool:
    return part.spec.architecture.has_bidirectional_images and config.max_images > 0


def _weights(
    part: RankPart, config: EngineConfig, options: PluginOptions, *, is_exact: bool
) -> OpenVINOWeights:
    checkpoint = part.checkpoint
    is_mapped = plugin_fuses_mlp() and "mode" in quantization_of(
        checkpoint.config
    )  # see `_release_file_pages`
    return OpenVINOWeights(
        checkpoint,
        options.precision,
        _bits_to_quantise(config, checkpoint, options),
        is_exact=is_exact or computes_integers_as_floats(options.precision),
        gathers=True,
        joins=None if is_mapped else partial(can_join, options),
    )


def _ops_of(
    part: RankPart, config: EngineConfig, weights: OpenVINOWeights, sums: RankSums | None,
    *, keeps_latent: bool,
) -> OpenVINOOps:  # fmt: skip
    """Return the operations with the inputs that the model and `config` need.

    `sums` are those over ranks.  Adapters may change the matrix that expands latent vectors, and
    the runner that a cache is shared with has the keys and values of every head.
    """
    spec = part.spec
    has_images = spec.architecture.has_features(config.max_images, config.max_audios)
    inputs: dict[str, Any] = {
        "adapts": config.has_adapters,
        "num_features": spec.image_features if has_images and spec.is_first else 0,
        "has_axes": bool(spec.rope.axes),
        "switches": bool(spec.rope.switch),
        "has_types": _has_bidirectional_images(part, config),
    }
    if sums is not None:
        return OpenVINORankOps(weights, sums, part.experts, **inputs)
    return OpenVINOOps(weights, keeps_latent=keeps_latent and not config.has_adapters, **inputs)


def _compiled(
    model: ov.Model,
    weights: OpenVINOWeights,
    options: PluginOptions,
    *,
    is_exact: bool,
    overrides: Mapping[str, Any],
) -> Any:
    """Compile the graph with `options` and then the properties `overrides`.

    `weights.constants` gets the arrays that the plugin refers to, and those to release once they
    are packed.
    """
    constants = weights.constants
    blocks = fusible_blocks(model) if options.precision == "bf16" and plugin_fuses_mlp() else []
    by_rows = not constants.is_grouped and any(block.is_int8 for block in blocks)
    properties = options.properties(constants.group, is_exact=is_exact, by_rows=by_rows)
    halves = to_f16(blocks)
    constants.kept += halves
    properties |= overrides
    compiled = compile_graph(model, properties)
    if num_fused(compiled) == len(blocks):
        constants.to_release += halves
    releasable = packed_once(weights, properties)
    constants.to_release += releasable.values()
    constants.release_order = packing_order(model, releasable)
    return compiled


def _release_file_pages(checkpoint: Checkpoint, weights: OpenVINOWeights) -> None:
    """Release the file pages that were read, unless the plugin may compute with them.

    It does so with AMX and integers of this package's quantisation.
    """
    if weights.constants.releasable:
        checkpoint.release()  # what is still needed is decoded, or read again
    elif weights.constants.group and plugin_fuses_mlp():
        prefault(weights.constants.kept)


def build_model(ops: OpenVINOOps, part: RankPart) -> ov.Model:
    """Build the graph of the layers of `part`.  Raises StartError: weights that do not fit."""
    spec = part.spec
    inputs = ops.inputs if spec.is_first else ops.stage_inputs(received_width(spec))
    output = part.decoder(ops, spec, inputs)
    if not spec.is_last:
        return ops.graph_of({"hidden": output})
    width = spec.num_logits or spec.vocab_size
    width = width if part.exchange is None else part.exchange.rows.count
    return ops.model(output, width)


def _log_dequantised(
    weights: OpenVINOWeights, checkpoint: Checkpoint, options: PluginOptions
) -> None:
    """Log which quantised matrices became floats, as the line about the model does not tell."""
    has_kernels = describe(checkpoint.config).has_kernels
    if has_kernels and weights.dequantised:
        log.warning(
            "%d quantised matrices of %s are dequantised to %s, the first %r: groups of different "
            "sizes, a code without kernels, or experts that are reordered or not quantised alike",
            len(weights.dequantised), checkpoint.directory.name, options.precision,
            weights.dequantised[0],
        )  # fmt: skip


def _bits_to_quantise(
    config: EngineConfig, checkpoint: Checkpoint, options: PluginOptions
) -> int | None:
    stored = quantization_of(checkpoint.config).get("mode") or describe(checkpoint.config).text
    if not stored:
        if options.bits is not None:
            log.warning(
                "quantising %s to %s while loading is slow and needs memory for both; "
                "`python -m mindspore_serving.llm.quantize` does it once",
                checkpoint.directory.name,
                config.quantization,
            )
        elif not options.has_bf16 and config.dtype == "auto":
            log.warning(
                "this processor has no bf16: %s computes in f32; `mindspore-serving quantize` to "
                "int8 halves memory and time, to float16 it saves only a little time",
                checkpoint.directory.name,
            )
        return options.bits
    if config.quantization not in (None, stored):
        raise StartError(
            f"quantization is {config.quantization!r}, but {checkpoint.directory} is already "
            f"quantised to {stored}; use the float checkpoint, or leave quantization out"
        )
    return None


def compile_graph(model: ov.Model, properties: Mapping[str, Any]) -> Any:
    """Compile `model` for the CPU.  Raises StartError with the plugin's message."""
    try:
        return ov.Core().compile_model(model, "CPU", dict(properties))
    except RuntimeError as error:
        raise StartError(f"openvino cannot compile the model: {error}") from error
