"""What an engine's options mean to OpenVINO's CPU plugin: precision, cache type, properties.

Decided from the options and what the processor can do; compiles nothing.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import openvino as ov

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig

BITS = {"int8": 8, "int4": 4}
BY_ROWS = str(2**64 - 1)  # the group of dynamic quantisation that is a whole row

# (precision, kv_cache_dtype) -> KV_CACHE_PRECISION.  Under bf16 the plugin makes f16 into bf16.
CACHE_PRECISIONS = {
    ("bf16", "bf16"): "f16",
    ("bf16", "u8"): "u8",
    ("f32", "f32"): "f32",
    ("f32", "f16"): "f16",
    ("f32", "u8"): "u8",
}
WITHOUT_VNNI = ("SSE41", "AVX", "AVX2")  # limits under which the plugin's integer kernels fail
WITH_BF16 = ("BF16", "FP16", "AMX", "AVX10", "VNNI_2")  # in names of instruction sets


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """`precision` is "bf16" or "f32"; `bits` to quantise to, or None; `has_bf16` of the CPU."""

    precision: str
    cache_precision: str
    has_bf16: bool
    bits: int | None
    num_threads: int | None

    def properties(
        self, group: int, *, is_exact: bool = False, by_rows: bool = False
    ) -> dict[str, Any]:
        """The plugin's properties; `group` is how many weights share a scale, 0 with floats.

        Unless `is_exact`, what integers are multiplied with is rounded to int8 as well; `by_rows`
        all that a token has with one scale.
        """
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "KV_CACHE_PRECISION": self.cache_precision,
            "PERFORMANCE_HINT": "LATENCY",
            # Pinned threads of two models on a machine take the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        if self.num_threads is not None:
            properties["INFERENCE_NUM_THREADS"] = self.num_threads
        if group:
            # One that does not divide the weights' group switches the integer kernels off.
            size = BY_ROWS if by_rows else str(group)
            is_limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0" if is_exact or is_limited else size
        return properties


def capabilities(num_threads: int | None = None) -> list[str]:
    """The plugin's OPTIMIZATION_CAPABILITIES with so many threads; None: one for each core.

    It names BF16 also where its kernels fail, and here it is left out: where ONEDNN_MAX_CPU_ISA
    forbids them, and with one thread, among which a fused block cannot be divided (SIGFPE).
    """
    found: list[str] = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    is_allowed = most in ("", "ALL", "DEFAULT") or any(kind in most for kind in WITH_BF16)
    cores = len(os.sched_getaffinity(0))
    has_kernels = is_allowed and min(num_threads or cores, cores) > 1
    return [each for each in found if each != "BF16" or has_kernels]


def options_from(config: EngineConfig, capabilities: Collection[str]) -> PluginOptions:
    """`capabilities` is what the function of that name says.

    dtype "auto" is bf16 if the processor computes it and kv_cache_dtype is auto, bf16 or u8; else
    it is f32, so a cache of f32 or f16 can be asked for on every processor.  kv_cache_dtype "auto"
    has 16 bits, as models' weights have; f32 if that is what dtype asks for by name.
    Raises StartError for a dtype, or a pair of them, that this processor does not have.
    """
    has_bf16 = "BF16" in capabilities
    precision = _precision(config, has_bf16)
    wanted = config.kv_cache_dtype
    if wanted == "auto":
        wanted = "f16" if (precision, config.dtype) == ("f32", "auto") else precision
    if (precision, wanted) not in CACHE_PRECISIONS:
        accepted = [kind for of, kind in CACHE_PRECISIONS if of == precision]
        raise StartError(
            f"kv_cache_dtype is {wanted!r}, expected auto or one of {', '.join(accepted)} with "
            f"dtype {precision}"
        )
    return PluginOptions(
        precision=precision,
        cache_precision=CACHE_PRECISIONS[precision, wanted],
        has_bf16=has_bf16,
        bits=BITS[config.quantization] if config.quantization else None,
        num_threads=config.num_threads,
    )


def with_matrices(options: PluginOptions, config: EngineConfig) -> PluginOptions:
    """`options` of a model whose states are matrices: in f32.  Under bf16 the plugin would round
    them at every token, so that what fades slowly would not fade.  Raises StartError for bf16.
    """
    if config.dtype == "bf16":
        raise StartError(
            "dtype is 'bf16', in which the states of linear attention or Mamba layers would be "
            "rounded at every token; leave it out, or take f32 or the torch runtime"
        )
    if options.precision == "f32":
        return options
    others = options_from(config, ())
    return replace(others, has_bf16=True)


def _precision(config: EngineConfig, has_bf16: bool) -> str:
    dtype, cache = config.dtype, config.kv_cache_dtype
    if dtype == "auto":
        is_possible = cache == "auto" or ("bf16", cache) in CACHE_PRECISIONS
        return "bf16" if has_bf16 and is_possible else "f32"
    if dtype == "bf16" and not has_bf16:
        raise StartError(
            "dtype is 'bf16', but this processor computes in f32 only, or there is one thread "
            "alone; leave it out"
        )
    return dtype
