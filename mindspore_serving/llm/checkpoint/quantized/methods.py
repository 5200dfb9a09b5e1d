"""Supported quantised formats, by their quant_method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.quantized import mxfp4
from mindspore_serving.llm.checkpoint.quantized.ascend import (
    ascend,
    check_ascend,
    find_description,
    verify_ascend,
)
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
from mindspore_serving.llm.checkpoint.quantized.norm_biases import fold_norm_biases
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
    of a module that has one of the `leaves`, with one of their dtypes if those are listed. `verify`
    refuses a checkpoint that contradicts the configuration, and `finish` changes the other tensors.
    """

    check: Callable[[Config], FormatName]
    leaves: Mapping[str, tuple[str, ...]]
    build: Callable[[TensorParts, Config], QuantizedTensor] | None
    verify: Callable[[Mapping[str, StoredTensor], Config], None] | None = None
    finish: Callable[[Tensors], Tensors] | None = None


METHODS: dict[str, QuantizationMethod] = {
    "gptq": QuantizationMethod(check_gptq, {"qweight": ()}, gptq),
    "awq": QuantizationMethod(check_awq, {"qweight": ()}, awq),
    "fp8": QuantizationMethod(check_fp8, {"weight": KINDS}, fp8),
    "fbgemm_fp8": QuantizationMethod(check_fp8, {"weight": KINDS}, fp8),
    "compressed-tensors": QuantizationMethod(
        check_compressed, {"weight_packed": (), "weight": ("I8", *KINDS)}, compressed
    ),
    "bitsandbytes": QuantizationMethod(check_bitsandbytes, {"weight": ("U8", "I8")}, bitsandbytes),
    "ascend": QuantizationMethod(
        check_ascend, {"weight": ("I8",)}, ascend, verify_ascend, fold_norm_biases
    ),
    "mxfp4": QuantizationMethod(mxfp4.check_mxfp4, {}, None),
}


def read_config(directory: Path) -> dict[str, Any]:
    """Read config.json with the quantisation from another file; empty if there is none."""
    config = read_optional_json(directory / CONFIG)
    stated = quantization_of(config).get("quant_method")
    if config and stated in (None, "ascend") and (description := find_description(directory)):
        return {**config, "quantization_config": description}
    if not config or stated is not None:
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


def with_names(config: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return config.json with new names of the tensors whose types it has."""
    options = quantization_of(config)
    if not isinstance(options.get("types"), dict):
        return config
    types = {names.get(name, name): kind for name, kind in options["types"].items()}
    return {**config, "quantization_config": {**options, "types": types}}


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
    options, name_of_format = quantization_of(config), describe(config)
    method = METHODS.get(options.get("quant_method") or "")
    if method is not None and method.verify is not None:
        method.verify(tensors, options)
    if method is None or not name_of_format.text:
        return tensors
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
            result |= {f"{module}.weight": matrix, **parts.added}
        elif method.build is None and name.endswith(mxfp4.BLOCKS):
            stem = name.removesuffix(mxfp4.BLOCKS)
            result |= mxfp4.experts_of(stem, tensors)
            del result[name], result[stem + mxfp4.SCALES]
    _log_widened(result, name_of_format)
    return result if method.finish is None else method.finish(result)


def _log_widened(tensors: Tensors, name: FormatName) -> None:
    """Log matrices that have no form as integers, unless that is so of the whole format."""
    matrices = {key: kept for key, kept in tensors.items() if isinstance(kept, QuantizedTensor)}
    widened = [key for key, matrix in matrices.items() if not matrix.is_packed]
    if name.has_kernels and widened:
        log.warning(
            "%d of %d matrices in %s are widened to floats, as their inputs have scales or groups "
            "of their own: %r, ...", len(widened), len(matrices), name.text, widened[0],
        )  # fmt: skip


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
