"""compressed-tensors: packed integers of 4 and 8 bits, int8, and float8.

    pack-quantized    weight_packed int32 [outputs, inputs * bits / 32], weight_shape,
                      weight_zero_point int32 [outputs * bits / 32, groups]
    int-quantized     weight int8 [outputs, inputs], weight_zero_point int8
    float-quantized   weight float8, as in `float8`

and weight_scale: one number, [outputs, 1] or [outputs, groups]. Packed integers are stored minus
the smallest one, so unsigned. The format of a module follows from its tensors: `targets` and
`ignore` say the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized import float8
from mindspore_serving.llm.checkpoint.quantized.gptq import groups_of
from mindspore_serving.llm.checkpoint.quantized.grouped import Grouped, fields
from mindspore_serving.llm.checkpoint.quantized.parts import (
    Array,
    FormatName,
    QuantizedTensor,
    TensorParts,
)

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
MIXED = ("mixed-precision", "dense")  # each group has its own format
FLOAT8 = "compressed-tensors FP8"
BITS = {"int": (4, 8), "float": (8,)}


def check_compressed(config: Mapping[str, Any]) -> FormatName:
    """Return the names of the formats.

    Raises StartError for an unsupported format, number of bits, or transform.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise StartError("config.json has compressed-tensors without config_groups")
    for key in ("sparsity_config", "transform_config"):
        if config.get(key) and config[key] != {"format": "dense"}:
            raise StartError(
                f"config.json has compressed-tensors with {key}, which is not supported"
            )
    kinds = [_check_group(name, group, config) for name, group in groups.items()]
    return FormatName(", ".join(dict.fromkeys(kinds)), any(kind != FLOAT8 for kind in kinds))


def _check_group(name: str, group: Any, config: Mapping[str, Any]) -> str:
    label = f"config.json has compressed-tensors whose {name}"
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise StartError(f"{label} has no weights")
    kind = group.get("format") or config.get("format")
    if kind not in (*FORMATS, *MIXED):
        raise StartError(f"{label} has format {kind!r}, expected one of {', '.join(FORMATS)}")
    bits, numbers = weights.get("num_bits"), weights.get("type") or "int"
    if numbers not in BITS or type(bits) is not int or bits not in BITS[numbers]:
        raise StartError(
            f"{label} has {bits!r} bits of type {numbers!r}, expected int of 4 or 8, or float of 8"
        )
    if numbers == "float":
        return FLOAT8
    activations = "A8" if group.get("input_activations") else "A16"
    size = weights.get("group_size")
    return f"compressed-tensors W{bits}{activations}, {groups_of(size)}"


def compressed(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    parts.drop(*float8.INPUT_SCALES, "input_zero_point", "input_global_scale", "output_zero_point")
    if parts.has("weight_packed"):
        return _packed(parts)
    if parts.dtype("weight") == "I8":
        return _int8(parts)
    blocks = [_structure(group) for group in config["config_groups"].values()]
    block = next(filter(None, blocks), None)
    return float8.fp8(parts, {"weight_block_size": block})


def _structure(group: Mapping[str, Any]) -> Any:
    structure = group["weights"].get("block_structure")
    if isinstance(structure, str):  # "128x128", in older files
        return [int(part) if part.isdigit() else 0 for part in structure.split("x")]
    return structure


def _packed(parts: TensorParts) -> QuantizedTensor:
    words = parts.matrix("weight_packed", ("I32",))
    shape = [int(size) for size in parts.take("weight_shape", ("I64", "I32"), (2,))]
    outputs, inputs = shape
    bits = next((n for n in (4, 8) if words.shape == (outputs, inputs * n / 32)), 0)
    if not bits:
        raise parts.wrong("weight_packed", f"expected words of 4 or 8 bits for weights {shape}")
    groups, scales = _scales(parts, outputs, inputs)
    return Grouped(
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        rows=lambda some: words[some].view(np.uint8),
        scales=scales,
        zeros=_zeros(parts, (outputs, groups), bits),
        index=_index(parts, inputs, groups),
    ).tensor("W4A16" if bits == 4 else "W8A16", words)


def _index(parts: TensorParts, inputs: int, groups: int) -> Array | None:
    """Return the group of each input, None if groups are of consecutive inputs."""
    if not parts.has("weight_g_idx"):
        return None
    index = parts.take("weight_g_idx", ("I32", "I64"), (inputs,))
    if (index == -1).all():  # the module was not reordered
        return None
    if index.min() < 0 or index.max() >= groups:
        problem = f"has groups {index.min()} to {index.max()}, expected 0 to {groups - 1}"
        raise parts.wrong("weight_g_idx", problem)
    return index


def _int8(parts: TensorParts) -> QuantizedTensor:
    values = parts.matrix("weight", ("I8",))
    outputs, inputs = values.shape
    groups, scales = _scales(parts, outputs, inputs)
    return Grouped(
        shape=(outputs, inputs),
        bits=8,
        groups=groups,
        rows=lambda some: values[some].view(np.uint8) ^ np.uint8(0x80),
        scales=scales,
        zeros=_zeros(parts, (outputs, groups), 8),
    ).tensor("INT8", values)


def _scales(parts: TensorParts, outputs: int, inputs: int) -> tuple[int, Callable[[], Array]]:
    """Return the number of groups, and a function that returns their scales [outputs, groups]."""
    stored = parts.take("weight_scale", ("F32", "F16", "BF16"))
    groups = stored.shape[1] if stored.ndim == 2 else 1
    if groups < 1 or inputs % groups:
        raise parts.wrong("weight_scale", f"expected groups that divide {inputs} inputs")
    numbers = parts.numbers("weight_scale", (outputs, groups), (outputs,), (), (1,), (1, 1))
    is_single = stored.size == 1

    def scales() -> Array:
        some = numbers().reshape(-1, groups)
        return some.repeat(outputs, 0) if is_single else np.ascontiguousarray(some)

    return groups, scales


def _zeros(parts: TensorParts, shape: tuple[int, int], bits: int) -> Callable[[], Array]:
    """Return a function that returns the zeros [outputs, groups] as unsigned integers.

    Without stored zeros they are in the middle of the range.
    """
    middle, leaf = 1 << (bits - 1), "weight_zero_point"
    if not parts.has(leaf):
        return lambda: np.full(shape, middle, np.uint8)
    outputs, groups = shape
    if parts.dtype(leaf) == "I32":
        words = parts.take(leaf, ("I32",), (-(-outputs * bits // 32), groups))
        return lambda: np.ascontiguousarray(fields(words.T, bits)[:, :outputs].T)
    shapes = [shape, (outputs,), (), (1,), (1, 1)]
    stored = parts.take(leaf, ("I8",), *shapes)
    return lambda: np.broadcast_to(
        (stored.reshape(-1, groups).astype(np.int16) + middle).astype(np.uint8), shape
    )
