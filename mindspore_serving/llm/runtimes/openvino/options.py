"""Engine options as properties of OpenVINO's CPU plugin: precision, cache type, threads.

Decided from the options and the processor's capabilities; imports no OpenVINO and compiles nothing.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig

BITS = {"int8": 8, "int4": 4}
BY_ROWS = str(2**64 - 1)  # group size of dynamic quantisation that means a complete row

# (precision, kv_cache_dtype) -> KV_CACHE_PRECISION.  In bf16 the plugin changes f16 to bf16.
CACHE_PRECISIONS = {
    ("bf16", "bf16"): "f16",
    ("bf16", "u8"): "u8",
    ("f32", "f32"): "f32",
    ("f32", "f16"): "f16",
    ("f32", "u8"): "u8",
}
WITHOUT_VNNI = ("SSE41", "AVX", "AVX2")  # ISA limits with which the plugin's integer kernels fail


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of the plugin.

    `precision` is "bf16" or "f32"; `bits` to quantise to, or None; `has_bf16` is of the processor.
    """

    precision: str
    cache_precision: str
    has_bf16: bool
    bits: int | None
    num_threads: int | None

    def properties(
        self, group: int, *, is_exact: bool = False, by_rows: bool = False
    ) -> dict[str, Any]:
        """Return the plugin's properties; `group` weights share a scale, 0 with floats.

        Unless `is_exact`, the inputs of integer products are rounded to int8 as well, and with
        `by_rows` all inputs of a token have one scale.
        """
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "KV_CACHE_PRECISION": self.cache_precision,
            "PERFORMANCE_HINT": "LATENCY",
            # Pinned threads of two models on a machine would share the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        if self.num_threads is not None:
            properties["INFERENCE_NUM_THREADS"] = self.num_threads
        if group:
            # A size that does not divide the weights' group disables the integer kernels.
            size = BY_ROWS if by_rows else str(group)
            is_limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0" if is_exact or is_limited else size
        return properties


def options_from(config: EngineConfig, capabilities: Collection[str]) -> PluginOptions:
    """Translate the engine's options; `capabilities` are those of the function of that name.

    dtype "auto" is bf16 if the processor supports it and kv_cache_dtype is auto, bf16 or u8; else
    it is f32, so that a cache of f32 or f16 is possible on every processor.  kv_cache_dtype "auto"
    has 16 bits, as models' weights have, or f32 if dtype is explicitly f32.

    Raises StartError for a dtype, or a pair of them, that this processor does not support.
    """
    has_bf16 = "BF16" in capabilities
    precision = _precision(config, has_bf16)
    cache_dtype = config.kv_cache_dtype
    if cache_dtype == "auto":
        cache_dtype = "f16" if (precision, config.dtype) == ("f32", "auto") else precision
    if (precision, cache_dtype) not in CACHE_PRECISIONS:
        accepted = [kind for of, kind in CACHE_PRECISIONS if of == precision]
        raise StartError(
            f"kv_cache_dtype is {cache_dtype!r}, expected auto or one of {', '.join(accepted)} "
            f"with dtype {precision}"
        )
    return PluginOptions(
        precision=precision,
        cache_precision=CACHE_PRECISIONS[precision, cache_dtype],
        has_bf16=has_bf16,
        bits=BITS[config.quantization] if config.quantization else None,
        num_threads=config.num_threads,
    )


def with_f32_states(options: PluginOptions, config: EngineConfig) -> PluginOptions:
    """Return `options` for a model whose states are matrices: in f32.

    In bf16 the plugin would round them at every token, so that what decays slowly would not decay.

    Raises StartError for an explicit bf16.
    """
    if config.dtype == "bf16":
        raise StartError(
            "dtype is 'bf16', in which the states of linear attention or Mamba layers would be "
            "rounded at every token; leave it out, or use f32 or the torch runtime"
        )
    if options.precision == "f32":
        return options
    f32_options = options_from(config, ())
    return replace(f32_options, has_bf16=True)


def _precision(config: EngineConfig, has_bf16: bool) -> str:
    dtype, cache = config.dtype, config.kv_cache_dtype
    if dtype == "auto":
        is_possible = cache == "auto" or ("bf16", cache) in CACHE_PRECISIONS
        return "bf16" if has_bf16 and is_possible else "f32"
    if dtype == "bf16" and not has_bf16:
        raise StartError(
            "dtype is 'bf16', but this processor supports f32 only, or num_threads is 1; leave "
            "dtype out"
        )
    return dtype
