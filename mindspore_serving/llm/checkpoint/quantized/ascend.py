"""ModelSlim and golden-stick: integers for Ascend, with a file that tells the type of each tensor.

    ModelSlim      quant_model_description*.json, weight_scale and weight_offset [outputs, groups]
    golden-stick   quantization_description.json, weight_scale and weight_offset [outputs] or
                   [groups, outputs]

    8 bit   weight int8 [outputs, inputs]
    4 bit   weight int8, two integers each, low nibble first: of two outputs, [outputs / 2, inputs]
            (golden-stick: transposed), or of two inputs, [outputs, inputs / 2] (ModelSlim's W4A16)
    W8A8    static also has input_scale and input_offset, of all inputs or of each, deq_scale
            [outputs] (float32, or its bits in int64), which is input_scale * weight_scale, and
            quant_bias int32 [outputs], the bias less the products of input_offset

A weight is weight_scale * (integer - weight_offset), times smooth_scale [inputs] if there is one.
Caches are not rounded, and inputs only by runtimes with kernels for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.derived import DerivedTensor
from mindspore_serving.llm.checkpoint.model_files import read_json
from mindspore_serving.llm.checkpoint.packing import pack_nibbles, unpack_nibbles
from mindspore_serving.llm.checkpoint.quantized.grouped import Grouped
from mindspore_serving.llm.checkpoint.quantized.parts import (
    DYNAMIC,
    FLOATS,
    Array,
    FormatName,
    Matrix,
    QuantizedTensor,
    StaticInputs,
    TensorParts,
)
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

GOLDEN_STICK = "golden-stick"
# Patterns of the files that describe tensors -> the tool that writes them.
DESCRIPTIONS = {
    "quantization_description.json": GOLDEN_STICK,
    "quant_model_description*.json": "ModelSlim",
}
TYPES_8 = ("W8A16", "W8A8", "W8A8_MIX", "W8A8_DYNAMIC")
TYPES_4 = ("W4A16", "W4A8_DYNAMIC")
NOT_MATRICES = ("FLOAT", "C8", "KV8")  # floats, and scales of int8 caches, which are not used here
FUSED = {"q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv"}
FUSED |= {"gate_proj": "linear_fc1", "up_proj": "linear_fc1"}


def find_description(directory: Path) -> dict[str, Any]:
    """Read the quantisation that the tools' file describes; empty without such a file."""
    for pattern, tool in DESCRIPTIONS.items():
        for path in sorted(directory.glob(pattern))[:1]:
            types = {k: v for k, v in read_json(path).items() if isinstance(v, str) and "." in k}
            return {"quant_method": "ascend", "tool": tool, "file": path.name, "types": types}
    return {}


def check_ascend(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format.  Raises StartError for types that are not supported."""
    types = config.get("types")
    if not isinstance(types, dict):
        raise StartError(
            "config.json has quant_method 'ascend', but there is no quant_model_description.json "
            "or quantization_description.json beside it: copy it from the quantised checkpoint"
        )
    kinds = sorted({str(kind) for kind in types.values()} - set(NOT_MATRICES))
    unknown = [kind for kind in kinds if kind not in (*TYPES_8, *TYPES_4)]
    if unknown:
        raise StartError(
            f"{config['file']} has tensors of type {unknown[0]!r}, expected one of "
            f"{', '.join((*TYPES_8, *TYPES_4, *NOT_MATRICES))}; quantise the model's float "
            "checkpoint with mindspore_serving.llm.quantize"
        )
    return FormatName(f"{config['tool']} {', '.join(kinds)}" if kinds else "")


def verify_ascend(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Raise StartError naming a matrix whose dtype contradicts its description."""
    for name, stored in tensors.items():
        if len(stored.shape) != 2 or not name.endswith(".weight"):
            continue
        kind = _type(name.removesuffix(".weight"), config["types"])
        if (stored.dtype == "I8") != (kind in TYPES_8 + TYPES_4):
            described = kind or "of no type"
            raise StartError(
                f"tensor {name!r} is {stored.dtype}, but {described} in {config['file']}"
            )


def ascend(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    kind = _type(parts.module, config["types"])
    values = parts.matrix("weight", ("I8",))
    is_turned = config["tool"] == GOLDEN_STICK
    shape, rows = (values.shape[0], values.shape[1]), _bytes(values)
    if kind in TYPES_4:
        shape, rows = _nibbles(parts, values, is_turned=is_turned)
    inputs = _inputs(parts, kind, values)
    if kind.startswith("W8A8") and not parts.has("weight_scale"):
        _add_bias(parts, values, is_rounded=is_turned)
        return replace(_static(parts, kind, values), inputs=inputs)
    groups, scales = _scales(parts, "weight_scale", shape, is_turned=is_turned)
    bits = 8 if kind in TYPES_8 else 4
    grouped = Grouped(
        shape=shape,
        bits=bits,
        groups=groups,
        rows=rows,
        scales=scales,
        zeros=_zeros(parts, shape, groups, bits, is_turned=is_turned),
    )
    _add_bias(parts, values, is_rounded=is_turned)
    parts.drop("scale_bias", "clip_ratio")
    smooth = _smoothing(parts, shape[1])
    if smooth is None:
        return replace(grouped.tensor(kind, values), inputs=inputs)

    def widened() -> Matrix:
        return grouped.matrix() * smooth

    return QuantizedTensor(kind, shape, values, widened, is_packed=False)


def _type(module: str, types: Mapping[str, str]) -> str:
    """Return the type of a matrix, which may be a part of a fused one; "" if there is none."""
    stem, _, leaf = module.rpartition(".")
    names = (module, f"{stem}.{FUSED.get(leaf, leaf)}")
    return next((types[f"{name}.weight"] for name in names if f"{name}.weight" in types), "")


def _bytes(values: Array) -> Callable[[slice], Array]:
    return lambda some: values[some].view(np.uint8) ^ np.uint8(0x80)


def _nibbles(
    parts: TensorParts, values: Array, *, is_turned: bool
) -> tuple[tuple[int, int], Callable[[slice], Array]]:
    """Return the shape of a 4-bit matrix, and a function that returns bytes of some outputs."""
    scales = parts.take("weight_scale", FLOATS)
    outputs = scales.shape[-1 if is_turned else 0] if scales.ndim else 0
    packed = values.T if is_turned else values  # [outputs / 2, inputs], if of two outputs
    if len(packed) * 2 == outputs:

        def of_outputs(some: slice) -> Array:
            pairs = unpack_nibbles(np.ascontiguousarray(packed[_halved(some)].T.view(np.uint8)))
            return pack_nibbles(np.ascontiguousarray(pairs.T) ^ np.uint8(8))

        return (outputs, packed.shape[1]), of_outputs
    if len(values) == outputs and not is_turned:
        return (
            outputs,
            values.shape[1] * 2,
        ), lambda some: values[some].view(np.uint8) ^ np.uint8(0x88)
    raise parts.wrong("weight", f"expected two of {outputs} outputs in a byte")


def _halved(some: slice) -> slice:
    return slice(some.start // 2, -(-some.stop // 2))


def _scales(
    parts: TensorParts, leaf: str, shape: tuple[int, int], *, is_turned: bool
) -> tuple[int, Callable[[], Array]]:
    """Return the number of groups, and a function that returns the scales [outputs, groups].

    Scales of two levels are multiplied.
    """
    outputs, inputs = shape
    stored = parts.take(leaf, FLOATS)
    groups = stored.size // outputs
    forms = [(groups, outputs)] if is_turned else [(outputs, groups)]
    numbers = parts.numbers(leaf, *forms, *([(outputs,)] if groups == 1 else []))
    if not groups or inputs % groups:
        raise parts.wrong(leaf, f"expected groups that divide {inputs} inputs")

    def first() -> Array:
        return _by_output(numbers(), outputs, groups, is_turned=is_turned)

    if not parts.has(f"{leaf}_second"):
        return groups, first
    inner, second = _scales(parts, f"{leaf}_second", shape, is_turned=is_turned)
    if groups != 1:
        raise parts.wrong(leaf, f"expected a scale for each of {outputs} outputs")
    return inner, lambda: first().astype(np.float32) * second().astype(np.float32)


def _by_output(array: Array, outputs: int, groups: int, *, is_turned: bool) -> Array:
    turned = array.reshape(groups, outputs).T if is_turned else array.reshape(outputs, groups)
    return np.ascontiguousarray(turned)


def _zeros(
    parts: TensorParts, shape: tuple[int, int], groups: int, bits: int, *, is_turned: bool
) -> Callable[[], Array]:
    """Return a function that returns the offsets [outputs, groups] of unsigned integers."""
    outputs, middle = shape[0], 1 << (bits - 1)
    parts.drop("weight_offset_second")
    leaf = "weight_offset"
    if not parts.has(leaf) or parts.has("weight_scale_second"):
        parts.drop(leaf)
        return lambda: np.full((outputs, groups), middle, np.uint8)
    dtype, stored = parts.dtype(leaf), parts.take(leaf, (*FLOATS, "I32", "I8"))
    if stored.size != outputs * groups:
        raise parts.wrong(leaf, f"expected as many as scales, {outputs} x {groups}")
    numbers = parts.numbers(leaf) if dtype in FLOATS else lambda: stored

    def zeros() -> Array:
        offsets = _by_output(numbers(), outputs, groups, is_turned=is_turned)
        result = (offsets + middle).astype(np.uint8)
        if (result != offsets + middle).any() or result.max() >= 2 * middle:
            raise parts.wrong(leaf, f"expected integers of {bits} bits")
        return result

    return zeros


def _inputs(parts: TensorParts, kind: str, values: Array) -> StaticInputs | str:
    """Return how inputs are rounded; W8A8_MIX, which is both, counts as dynamic."""
    if kind != "W8A8" or not parts.has("quant_bias"):
        return DYNAMIC if kind in ("W8A8_DYNAMIC", "W8A8_MIX") else ""
    outputs, inputs = values.shape
    is_int8 = parts.has("input_offset") and parts.dtype("input_offset") == "I8"
    offset = _per_input(parts, "input_offset", inputs).reshape(-1)
    return StaticInputs(
        values,
        _deq_scale(parts, outputs),
        parts.take("quant_bias", ("I32",), (outputs,)),
        _per_input(parts, "input_scale", inputs).reshape(-1),
        offset.astype(np.int8) if is_int8 else offset,
    )


def _static(parts: TensorParts, kind: str, values: Array) -> QuantizedTensor:
    """Build a matrix whose scale is known only multiplied by that of its inputs."""
    outputs, inputs = values.shape
    deq_scale, input_scale = _deq_scale(parts, outputs), _per_input(parts, "input_scale", inputs)
    is_single = input_scale.size == 1 or (input_scale == input_scale.reshape(-1)[0]).all()
    if is_single:
        return Grouped(
            shape=(outputs, inputs),
            bits=8,
            groups=1,
            rows=_bytes(values),
            scales=lambda: (deq_scale / input_scale.reshape(-1)[0]).reshape(outputs, 1),
            zeros=lambda: np.full((outputs, 1), 128, np.uint8),
        ).tensor(kind, values)

    def widened() -> Matrix:
        matrix: Matrix = values.astype(np.float32) * deq_scale[:, None] / input_scale
        return matrix

    return QuantizedTensor(kind, (outputs, inputs), values, widened, is_packed=False)


def _deq_scale(parts: TensorParts, outputs: int) -> Array:
    stored = parts.take("deq_scale", ("F32", "I64", "U64"), (outputs,), (outputs, 1))
    if stored.dtype != np.float32:
        stored = stored.astype(np.uint32).view(np.float32)
    return stored.reshape(outputs)


def _per_input(parts: TensorParts, leaf: str, inputs: int) -> Array:
    """Return numbers of the inputs as float32, one or [inputs]."""
    stored = parts.take(leaf, (*FLOATS, "I8", "I32"), (), (1,), (inputs,))
    numbers = parts.numbers(leaf)() if parts.dtype(leaf) in FLOATS else stored
    return numbers.astype(np.float32)


def _smoothing(parts: TensorParts, inputs: int) -> Array | None:
    """Return the factor of each input; None if there are none, or all are 1."""
    if not parts.has("smooth_scale"):
        return None
    factors = _per_input(parts, "smooth_scale", inputs)
    return None if (factors == 1).all() else factors


def _add_bias(parts: TensorParts, values: Array, *, is_rounded: bool) -> None:
    """Add the bias that `quant_bias` contains, unless it is stored by itself.

    A bias within the rounding of `quant_bias` is 0: to integers, and to bfloat16 if `is_rounded`.
    """
    if not parts.has("quant_bias"):
        parts.drop("input_scale", "input_offset", "deq_scale")
        return
    outputs, inputs = values.shape
    quant_bias = parts.take("quant_bias", ("I32",), (outputs,))
    deq_scale, offset = _deq_scale(parts, outputs), _per_input(parts, "input_offset", inputs)
    parts.drop("input_scale")
    if parts.has("bias"):
        return

    def bias() -> Array:
        products = values.astype(np.float32) @ np.broadcast_to(offset, (inputs,)).astype(np.float64)
        steps = quant_bias + products
        steps[np.abs(steps) <= 0.501 + is_rounded * np.abs(products) * 2.0**-8] = 0
        return np.asarray(steps * deq_scale, np.float32)

    parts.add("bias", DerivedTensor("F32", (outputs,), [], bias))
