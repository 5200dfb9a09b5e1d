"""Checkpoints in the quantised formats of other software, written by plain loops from what the
formats are described to be; and the floats that they stand for, by hand.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs in a word, lowest bits first
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)


@dataclass
class Written:
    """The tensors of one matrix behind its module's name, and the floats they stand for."""

    tensors: dict[str, np.ndarray | torch.Tensor]
    floats: np.ndarray  # [outputs, inputs]


@dataclass
class Case:
    """A format: its configuration, and how a matrix is written; files beside config.json."""

    config: dict[str, Any]
    write: Callable[[np.ndarray], Written]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def words(integers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """[rows, n] as int32 [rows, n * bits / 32]: the first in the lowest bits, or in `order`."""
    count = 32 // bits
    padded = np.zeros((len(integers), -(-integers.shape[1] // count) * count), np.uint64)
    padded[:, : integers.shape[1]] = integers
    result = np.zeros((len(integers), padded.shape[1] // count), np.uint64)
    for place in range(count):
        source = order[place] if order else place
        result |= padded[:, source::count] << np.uint64(bits * place)
    return result.astype(np.uint32).view(np.int32)


def rounded(
    weight: np.ndarray, bits: int, index: np.ndarray, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(integers [outputs, inputs], zeros and scales [outputs, groups], floats)."""
    outputs, most = len(weight), 2**bits - 1
    groups = int(index.max()) + 1
    zeros, scales = np.zeros((outputs, groups), int), np.zeros((outputs, groups), np.float32)
    for group in range(groups):
        some = weight[:, index == group]
        if symmetric:
            scales[:, group] = np.abs(some).max(1) * 2 / most
            zeros[:, group] = 2 ** (bits - 1)
        else:
            low, high = np.minimum(some.min(1), 0), np.maximum(some.max(1), 0)
            scales[:, group] = (high - low) / most
            zeros[:, group] = np.clip(np.rint(-low / scales[:, group]), 0, most)
    scales = scales.astype(np.float16).astype(np.float32)
    integers = np.clip(np.rint(weight / scales[:, index]) + zeros[:, index], 0, most).astype(int)
    floats = (integers - zeros[:, index]).astype(np.float32) * scales[:, index]
    return integers, zeros, scales, floats


def consecutive(inputs: int, group: int) -> np.ndarray:
    return np.arange(inputs) // (group if group > 0 else inputs)


def shuffled(inputs: int, group: int) -> np.ndarray:
    """The groups of inputs that were sorted by how much they matter."""
    return np.random.default_rng(inputs).permutation(consecutive(inputs, group))


def gptq(
    bits: int = 4,
    group: int = GROUP,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    layout: str = "gptq",
) -> Case:
    def write(weight: np.ndarray) -> Written:
        index = (shuffled if act_order else consecutive)(weight.shape[1], group)
        q, zeros, scales, floats = rounded(weight, bits, index, symmetric=symmetric)
        stored = zeros.T - (layout == "gptq")
        packed = words(stored, bits) if (stored >= 0).all() else borrowed(zeros.T, bits)
        tensors = {
            "qweight": np.ascontiguousarray(words(q, bits).T),
            "qzeros": packed,
            "scales": np.ascontiguousarray(scales.T).astype(np.float16),
            "g_idx": index.astype(np.int32),
        }
        return Written(tensors, floats)

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order}
    return Case({**config, "sym": symmetric, "checkpoint_format": layout}, write)


def borrowed(zeros: np.ndarray, bits: int) -> np.ndarray:
    """Zeros as the writers of the first format have them: words less 1 in each integer."""
    ones = sum(1 << place for place in range(0, 32, bits))
    return (words(zeros, bits).view(np.uint32) - np.uint32(ones)).view(np.int32)


def awq(group: int = GROUP) -> Case:
    def write(weight: np.ndarray) -> Written:
        index = consecutive(weight.shape[1], group)
        q, zeros, scales, floats = rounded(weight, 4, index, symmetric=False)
        tensors = {
            "qweight": words(q.T, 4, AWQ_ORDER),
            "qzeros": words(zeros.T, 4, AWQ_ORDER),
            "scales": np.ascontiguousarray(scales.T).astype(np.float16),
        }
        return Written(tensors, floats)

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    return Case({**config, "zero_point": True, "modules_to_not_convert": ["lm_head"]}, write)


def fp8(kind: str, block: tuple[int, int] | None = None) -> Case:
    """`kind` "tensor", "channel" or "block"."""

    def write(weight: np.ndarray) -> Written:
        outputs, inputs = weight.shape
        sizes = {"tensor": (outputs, inputs), "channel": (1, inputs), "block": block or (1, 1)}
        rows, columns = sizes[kind]
        scales = block_scales(weight, rows, columns)
        wide = scales.repeat(rows, 0)[:outputs].repeat(columns, 1)[:, :inputs]
        stored = torch.from_numpy(weight / wide).to(torch.float8_e4m3fn)
        name = "weight_scale_inv" if kind == "block" else "weight_scale"
        shaped = scales.reshape(-1)[0] if kind == "tensor" else scales
        tensors = {"weight": stored, name: np.array(shaped), "input_scale": np.float32(0.5)}
        return Written(tensors, stored.float().numpy() * wide)

    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return Case({**config, "weight_block_size": list(block) if block else None}, write)


def block_scales(weight: np.ndarray, rows: int, columns: int) -> np.ndarray:
    outputs, inputs = weight.shape
    scales = np.zeros((-(-outputs // rows), -(-inputs // columns)), np.float32)
    for i, j in np.ndindex(*scales.shape):
        some = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
        scales[i, j] = np.abs(some).max() / 448
    return scales


def packed_words(bits: int, group: int, *, symmetric: bool, act_order: bool = False) -> Case:
    """compressed-tensors' pack-quantized; scales in bfloat16."""

    def write(weight: np.ndarray) -> Written:
        index = (shuffled if act_order else consecutive)(weight.shape[1], group)
        q, zeros, scales, _ = rounded(weight, bits, index, symmetric=symmetric)
        stored = torch.from_numpy(scales).to(torch.bfloat16)
        floats = (q - zeros[:, index]).astype(np.float32) * stored.float().numpy()[:, index]
        tensors = {
            "weight_packed": words(q, bits),
            "weight_scale": stored,
            "weight_shape": np.array(weight.shape, np.int64),
        }
        if not symmetric:
            tensors["weight_zero_point"] = np.ascontiguousarray(words(zeros.T, bits).T)
        if act_order:
            tensors["weight_g_idx"] = index.astype(np.int32)
        return Written(tensors, floats)

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group}
    weights["strategy"] = "group" if group > 0 else "channel"
    return Case(compressed_config("pack-quantized", weights), write)


def compressed_config(kind: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, **group}}
    config = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"]}
    return {**config, "config_groups": groups, "quantization_status": "compressed"}


def int8(*, per_tensor: bool = False, symmetric: bool = True) -> Case:
    """compressed-tensors' int-quantized, W8A8."""

    def write(weight: np.ndarray) -> Written:
        index = np.zeros(weight.shape[1], int)
        q, zeros, scales, floats = rounded(weight, 8, index, symmetric=symmetric)
        if per_tensor:
            scales = np.full(scales.shape, scales.max(), np.float32)
            q = np.clip(np.rint(weight / scales) + 128, 0, 255).astype(int)
            floats = (q - 128).astype(np.float32) * scales
        tensors = {
            "weight": (q - 128).astype(np.int8),
            "weight_scale": scales[0] if per_tensor else scales,
        }
        if not symmetric:
            tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)
        return Written(tensors, floats)

    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": "channel"}
    activations = {"num_bits": 8, "type": "int", "dynamic": True}
    return Case(compressed_config("int-quantized", weights, input_activations=activations), write)


def compressed_fp8() -> Case:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    return Case(compressed_config("float-quantized", weights), fp8("channel").write)


def bitsandbytes_4bit(kind: str = "nf4", *, double: bool = False, block: int = 32) -> Case:
    code = np.array(NF4 if kind == "nf4" else [*FP4, *(-x for x in FP4)], np.float32)

    def write(weight: np.ndarray) -> Written:
        flat = weight.reshape(-1, block)
        absmax = np.abs(flat).max(1)
        tensors: dict[str, Any] = {"weight.quant_map": code.copy()}
        state = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        if double:
            table = np.linspace(-1, 1, 256, dtype=np.float32)
            offset = np.float32(absmax.mean())
            count = -(-len(absmax) // 256)
            outer = np.array(
                [np.abs(absmax[i * 256 : (i + 1) * 256] - offset).max() for i in range(count)],
                np.float32,
            )
            wide = outer.repeat(256)[: len(absmax)]
            near = np.abs(((absmax - offset) / wide)[:, None] - table).argmin(1).astype(np.uint8)
            absmax = table[near] * wide + offset
            state |= {"nested_blocksize": 256, "nested_offset": float(offset)}
            state["nested_dtype"] = "float32"
            tensors |= {"weight.absmax": near, "weight.nested_absmax": outer}
            tensors["weight.nested_quant_map"] = table.copy()
        else:
            tensors["weight.absmax"] = absmax
        q = np.abs((flat / absmax[:, None])[..., None] - code).argmin(-1).astype(np.uint8)
        even, odd = q.reshape(-1)[0::2], q.reshape(-1)[1::2]
        tensors["weight"] = (even << 4 | odd).reshape(-1, 1)
        text = json.dumps(state).encode()
        name = f"weight.quant_state.bitsandbytes__{kind}"
        tensors[name] = np.frombuffer(text, np.uint8).copy()
        floats = (code[q] * absmax[:, None]).reshape(weight.shape)
        return Written(tensors, floats)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Case(config, write)


def bitsandbytes_int8() -> Case:
    def write(weight: np.ndarray) -> Written:
        absmax = np.abs(weight).max(1).astype(np.float32)
        q = np.rint(weight * 127 / absmax[:, None]).astype(np.int8)
        tensors = {"weight": q, "SCB": absmax, "weight_format": np.uint8(0)}
        return Written(tensors, q.astype(np.float32) * (absmax / np.float32(127))[:, None])

    return Case({"quant_method": "bitsandbytes", "load_in_8bit": True}, write)


def described(kind: str, file: str = "quant_model_description.json") -> dict[str, Any]:
    """What is read from a file that describes the type of each tensor, here of one."""
    tool = "golden-stick" if file == GOLDEN_STICK else "ModelSlim"
    return {"quant_method": "ascend", "tool": tool, "file": file, "types": {MATRIX: kind}}


MATRIX = "model.layers.0.mlp.up_proj.weight"
GOLDEN_STICK = "quantization_description.json"


def modelslim(kind: str = "W8A16", group: int = -1, *, symmetric: bool = True) -> Case:
    """A scale and an offset per output or group of inputs, in float32."""
    bits = int(kind[1])

    def write(weight: np.ndarray) -> Written:
        q, zeros, scales, floats = rounded(
            weight, bits, consecutive(weight.shape[1], group), symmetric=symmetric
        )
        signed, middle = q - 2 ** (bits - 1), 2 ** (bits - 1)
        stored = signed.astype(np.int8)
        if kind == "W4A8_DYNAMIC" or (bits == 4 and group > 0):
            stored = two_in_a_byte(signed)
        elif bits == 4:
            stored = two_in_a_byte(signed.T).T
        tensors: dict[str, Any] = {"weight": stored, "weight_scale": scales}
        tensors["weight_offset"] = (zeros - middle).astype(np.float32)
        if kind == "W4A8_DYNAMIC":
            tensors["scale_bias"] = np.zeros((len(weight), 1), np.float32)
        return Written(tensors, floats)

    return Case(described(kind), write)


def two_in_a_byte(rows: np.ndarray) -> np.ndarray:
    """[2n, m] signed as [n, m] of bytes: even rows in the low four bits."""
    return ((rows[0::2] & 15) | (rows[1::2] << 4)).astype(np.int8)


def modelslim_two_levels(group: int = GROUP) -> Case:
    """W4A8 by way of int8: a scale per output, and another per group."""

    def write(weight: np.ndarray) -> Written:
        index = consecutive(weight.shape[1], group)
        first = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
        q, _, second, _ = rounded(weight / first, 4, index, symmetric=True)
        tensors = {
            "weight": two_in_a_byte(q - 8),
            "weight_scale": first,
            "weight_offset": np.zeros_like(first),
            "weight_scale_second": second,
            "weight_offset_second": np.zeros_like(second),
            "scale_bias": np.zeros((len(weight), 1), np.float32),
        }
        return Written(tensors, (q - 8).astype(np.float32) * (first * second)[:, index])

    return Case(described("W4A8_DYNAMIC"), write)


def static_w8a8(*, as_integer: bool = False, with_weight_scale: bool = False) -> Case:
    """ModelSlim's W8A8: inputs are rounded with a scale and an offset of all."""

    def write(weight: np.ndarray) -> Written:
        q, _, scales, floats = rounded(weight, 8, np.zeros(weight.shape[1], int), symmetric=True)
        signed = q - 128
        input_scale, input_offset = np.float32(0.0625), np.float32(-7)
        deq_scale = (scales[:, 0] * input_scale).astype(np.float32)
        bits = deq_scale.view(np.int32).astype(np.int64)
        tensors = {
            "weight": signed.astype(np.int8),
            "quant_bias": np.rint(-signed.sum(1) * input_offset).astype(np.int32),
            "deq_scale": bits if as_integer else deq_scale,
            "input_scale": np.array([input_scale]),
            "input_offset": np.array([input_offset]),
        }
        if with_weight_scale:
            tensors |= {"weight_scale": scales, "weight_offset": np.zeros_like(scales)}
        return Written(tensors, floats)

    return Case(described("W8A8"), write)


def golden_stick(kind: str = "W8A16", group: int = -1) -> Case:
    """Scales and offsets [groups, outputs] or [outputs]; 4 bits as [inputs, outputs / 2]."""
    bits = int(kind[1])

    def write(weight: np.ndarray) -> Written:
        index = consecutive(weight.shape[1], group)
        q, zeros, scales, floats = rounded(weight, bits, index, symmetric=False)
        signed, middle = q - 2 ** (bits - 1), 2 ** (bits - 1)
        shape = (-1, len(weight)) if group > 0 else (len(weight),)
        tensors = {
            "weight": two_in_a_byte(signed).T if bits == 4 else signed.astype(np.int8),
            "weight_scale": scales.T.reshape(shape).astype(np.float16),
            "weight_offset": (zeros - middle).T.reshape(shape).astype(np.int32),
        }
        return Written(tensors, floats)

    return Case(described(kind, GOLDEN_STICK), write)


def golden_stick_a8w8(*, smooth: bool = False) -> Case:
    """Static, with a scale and an offset for each input, which smoothing makes different."""

    def write(weight: np.ndarray) -> Written:
        outputs, inputs = weight.shape
        random = np.random.default_rng(inputs)
        factors = 2.0 ** random.integers(-2, 3, inputs) if smooth else np.ones(inputs)
        q, _, scales, _ = rounded(weight / factors, 8, np.zeros(inputs, int), symmetric=True)
        signed = q - 128
        scale, offset = np.float32(0.0625), np.full(inputs, 5, np.int8)
        tensors = {
            "weight": signed.astype(np.int8),
            "quant_bias": (-signed.sum(1) * 5).astype(np.int32),
            "deq_scale": (scales[:, 0] * scale).astype(np.float32),
            "input_scale": (scale / factors).astype(np.float32),
            "input_offset": offset,
        }
        floats = signed.astype(np.float32) * scales * factors.astype(np.float32)
        return Written(tensors, floats.astype(np.float32))

    return Case(described("W8A8", GOLDEN_STICK), write)


CASES: dict[str, Case] = {
    "gptq": gptq(),
    "gptq-asymmetric": gptq(symmetric=False),
    "gptq-channel": gptq(group=-1),
    "gptq-act-order": gptq(act_order=True),
    "gptq-v2": gptq(symmetric=False, layout="gptq_v2"),
    "gptq-8bit": gptq(8, symmetric=False, act_order=True),
    "awq": awq(),
    "fp8-tensor": fp8("tensor"),
    "fp8-channel": fp8("channel"),
    "fp8-block": fp8("block", (32, 32)),
    "w4a16": packed_words(4, GROUP, symmetric=True),
    "w4a16-asymmetric": packed_words(4, GROUP, symmetric=False),
    "w4a16-act-order": packed_words(4, GROUP, symmetric=True, act_order=True),
    "w8a16-channel": packed_words(8, -1, symmetric=True),
    "w8a8": int8(),
    "w8a8-tensor": int8(per_tensor=True),
    "w8a8-asymmetric": int8(symmetric=False),
    "compressed-fp8": compressed_fp8(),
    "nf4": bitsandbytes_4bit(),
    "nf4-double": bitsandbytes_4bit(double=True),
    "fp4": bitsandbytes_4bit("fp4"),
    "llm-int8": bitsandbytes_int8(),
    "modelslim-w8a16": modelslim(),
    "modelslim-w8a16-groups": modelslim(group=GROUP, symmetric=False),
    "modelslim-w8a8-dynamic": modelslim("W8A8_DYNAMIC"),
    "modelslim-w8a8": static_w8a8(),
    "modelslim-w8a8-bits": static_w8a8(as_integer=True, with_weight_scale=True),
    "modelslim-w4a16": modelslim("W4A16"),
    "modelslim-w4a16-groups": modelslim("W4A16", GROUP),
    "modelslim-w4a8": modelslim("W4A8_DYNAMIC"),
    "modelslim-w4a8-two-levels": modelslim_two_levels(),
    "golden-stick-a16w8": golden_stick(),
    "golden-stick-a16w4": golden_stick("W4A16", GROUP),
    "golden-stick-a8w8": golden_stick_a8w8(),
    "golden-stick-a8w8-smooth": golden_stick_a8w8(smooth=True),
}
WIDENED = ("fp4", "golden-stick-a8w8-smooth")  # no integers with a scale per output or group
KEPT = [name for name in CASES if "fp8" not in name and name != "fp4"]


def quantised(source: Path, target: Path, case: Case) -> tuple[Path, Path]:
    """The checkpoint `source` with the matrices of its layers as `case` has them, and one of the
    floats that these stand for: two directories in `target`."""
    plain, other = target / "floats", target / "quantised"
    for directory in (plain, other):
        shutil.copytree(source, directory)
    config = json.loads((other / "config.json").read_text())
    kind = case.config.get("types", {}).get(MATRIX)
    if kind is None:
        config["quantization_config"] = case.config
    (other / "config.json").write_text(json.dumps(config))
    floats: dict[str, torch.Tensor] = {}
    stored: dict[str, torch.Tensor] = {}
    quantised_names: set[str] = set()
    for name, tensor in load_file(source / "model.safetensors").items():
        if (
            tensor.dim() != 2
            or not re.search(r"\.(layers|h)\.", name)
            or name.endswith("mlp.gate.weight")
        ):
            floats[name] = stored[name] = tensor
            continue
        written = case.write(tensor.float().numpy())
        floats[name] = torch.from_numpy(np.ascontiguousarray(written.floats))
        module = name.removesuffix("weight")
        parts = {f"{module}{leaf}": as_torch(one) for leaf, one in written.tensors.items()}
        stored |= parts
        quantised_names |= set(parts)
    if kind is not None:
        types = {name: kind if name in quantised_names else "FLOAT" for name in stored}
        (other / case.config["file"]).write_text(json.dumps({"version": "1.0.0", **types}))
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, other / "model.safetensors", {"format": "pt"})
    return other, plain


def as_torch(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array.contiguous()
    return torch.from_numpy(np.ascontiguousarray(array).reshape(np.shape(array)))
