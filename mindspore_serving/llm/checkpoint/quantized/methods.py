"""Supported quantised formats, by their quant_method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.quantized import mxfp4
from mindspore_serving.llm.checkpoint.quantized.bitsandbytes import (
    bitsandbytes,
    check_bitsandbytes,
)
from mindspore_serving.llm.checkpoint.quantized.compressed_tensors import (
    check_compressed,
    compressed,
)
from mindspore_serving.llm.checkpoint.quantized.float8 import KINDS, check_fp8, fp8
from mindspore_serving.llm.checkpoint.quantized.gptq import awq, check_awq, check_gptq, gptq
from mindspore_serving.llm.checkpoint.quantized.parts import (
    FormatName,
    QuantizedTensor,
    TensorParts,
)
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Config: TypeAlias = Mapping[str, Any]
Tensors: TypeAlias = dict[str, StoredTensor]

OURS = "mindspore_serving"  # of a checkpoint that `llm.quantize` wrote
SCALED = "scaled"  # a key of ours: inputs of matrices were scaled, so adapters do not fit
GGUF = "gguf"  # of a GGUF file with quantised tensors
# Files of older writers -> their quant_method; they replace quantization_config in config.json.
OLDER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


@dataclass(frozen=True, slots=True)
class QuantizationMethod:
    """A format.

    `check` returns a configuration's name, or refuses it. `build` makes a matrix from the tensors
    of a module that has one of the `leaves`, with one of their dtypes if those are listed.
    """

    check: Callable[[Config], FormatName]
    leaves: Mapping[str, tuple[str, ...]]
    build: Callable[[TensorParts, Config], QuantizedTensor] | None


METHODS: dict[str, QuantizationMethod] = {
    "gptq": QuantizationMethod(check_gptq, {"qweight": ()}, gptq),
    "awq": QuantizationMethod(check_awq, {"qweight": ()}, awq),
    "fp8": QuantizationMethod(check_fp8, {"weight": KINDS}, fp8),
    "fbgemm_fp8": QuantizationMethod(check_fp8, {"weight": KINDS}, fp8),
    "compressed-tensors": QuantizationMethod(
        check_compressed, {"weight_packed": (), "weight": ("I8", *KINDS)}, compressed
    ),
    "bitsandbytes": QuantizationMethod(check_bitsandbytes, {"weight": ("U8", "I8")}, bitsandbytes),
    "mxfp4": QuantizationMethod(mxfp4.check_mxfp4, {}, None),
}


def read_config(directory: Path) -> dict[str, Any]:
    """Read config.json with the quantisation from another file; empty if there is none."""
    config = read_optional_json(directory / CONFIG)
    if not config or quantization_of(config):
        return config
    for name, method in OLDER_FILES.items():
        options = read_optional_json(directory / name)
        if options:
            return {**config, "quantization_config": {"quant_method": method, **options}}
    return config


def quantization_of(config: Config) -> Config:
    """Return the quantisation in config.json, empty for floats."""
    options = config.get("quantization_config") or config.get("compression_config") or {}
    return options if isinstance(options, dict) else {"quant_method": options}


def describe(config: Config) -> FormatName:
    """Return the name of a checkpoint's format, "" for floats and formats of this package.

    Raises StartError for an unsupported format.
    """
    options = quantization_of(config)
    if not options or options.get("quant_method") in (OURS, GGUF):
        return FormatName("", has_kernels=False)
    return _method(options).check(options)


def merge_quantized(config: Config, tensors: Tensors) -> Tensors:
    """Replace the tensors of each quantised matrix by the matrix.

    Nothing is decoded. Raises StartError for an unsupported format, and naming a tensor that is
    missing or does not fit.
    """
    if not describe(config).text:
        return tensors
    options = quantization_of(config)
    method = _method(options)
    result = dict(tensors)
    for name, stored in tensors.items():
        module, _, leaf = name.rpartition(".")
        dtypes = method.leaves.get(leaf)
        is_matrix = dtypes is not None and (not dtypes or stored.dtype in dtypes)
        if method.build is not None and is_matrix:
            parts = TensorParts(module, tensors)
            matrix = method.build(parts, options)
            for taken in parts.taken:
                del result[taken]
            result[f"{module}.weight"] = matrix
        elif method.build is None and name.endswith(mxfp4.BLOCKS):
            stem = name.removesuffix(mxfp4.BLOCKS)
            result |= mxfp4.experts_of(stem, tensors)
            del result[name], result[stem + mxfp4.SCALES]
    return result


def _method(options: Config) -> QuantizationMethod:
    name = options.get("quant_method")
    if not isinstance(name, str) or name not in METHODS:
        near = get_close_matches(str(name), METHODS, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise StartError(
            f"config.json has quant_method {name!r}, which is not supported{hint} (supported: "
            f"{', '.join(METHODS)}); quantise the model's float checkpoint with "
            "mindspore_serving.llm.quantize"
        )
    return METHODS[name]
