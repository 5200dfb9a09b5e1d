"""Quantised formats: what their tensors stand for, by hand, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.codebooks import CODEBOOKS
from mindspore_serving.llm.checkpoint.packing import Packed, unpack
from mindspore_serving.llm.checkpoint.quantized.methods import (
    describe,
    merge_quantized,
    read_config,
)
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from tests.llm.quantised_files import CASES, KEPT, WIDENED, Case, Written, gptq

pytestmark = pytest.mark.torch
MODULE = "model.layers.0.mlp.up_proj"
TYPES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
}
Tensors = dict[str, StoredTensor]
FLOAT = {f"{MODULE}.weight": "FLOAT", "other.weight": "W8A8"}


def stored(value: Any) -> StoredTensor:
    if isinstance(value, torch.Tensor):
        kind, bits = {
            torch.bfloat16: ("BF16", np.uint16),
            torch.float8_e4m3fn: ("F8_E4M3", np.uint8),
        }[value.dtype]
        signed = torch.int16 if kind == "BF16" else torch.uint8
        return StoredTensor(kind, tuple(value.shape), value.view(signed).numpy().view(bits))
    array = np.asarray(value)
    bits = array.view(np.uint16) if array.dtype == np.float16 else array
    return StoredTensor(TYPES[array.dtype], array.shape, bits)


def tensors_of(written: Written) -> Tensors:
    return {f"{MODULE}.{leaf}": stored(value) for leaf, value in written.tensors.items()}


def weight(outputs: int = 48, inputs: int = 64) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.1, (outputs, inputs)).astype(np.float32)


def config(case: Case, **changes: Any) -> dict[str, Any]:
    return {"quantization_config": {**case.config, **changes}}


def read(tensors: Tensors, case: Case, **changes: Any) -> Packed | np.ndarray:
    """The one matrix that there is."""
    found = merge_quantized(config(case, **changes), tensors)
    assert set(found) - {f"{MODULE}.bias"} == {f"{MODULE}.weight"}
    matrix = found[f"{MODULE}.weight"]
    assert isinstance(matrix, QuantizedTensor)
    result = matrix.read()
    assert isinstance(result, Packed) == matrix.is_packed
    return result


def floats(found: Packed | np.ndarray) -> np.ndarray:
    return unpack(found) if isinstance(found, Packed) else found


@pytest.mark.parametrize("name", CASES)
def test_matrices_are_decoded_by_their_format(name: str) -> None:
    case = CASES[name]
    written = case.write(weight())
    found = read(tensors_of(written), case)
    is_divided = name in ("modelslim-w8a8", "golden-stick-a8w8-smooth")  # by scales of inputs
    np.testing.assert_allclose(floats(found), written.floats, rtol=1e-6 * is_divided)
    assert isinstance(found, Packed) == (name not in WIDENED)
    assert describe(config(case)).has_kernels == (name in KEPT)


def test_the_outputs_of_a_word_of_awq_are_interleaved() -> None:
    """From the lowest bits up a word has the outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    arrays: dict[str, Any] = {
        "qweight": np.array([[0x76543210], [0]], np.uint32).view(np.int32),
        "qzeros": np.zeros((1, 1), np.int32),
        "scales": np.ones((1, 8), np.float16),
    }
    found = read(tensors_of(Written(arrays, weight())), CASES["awq"])
    assert floats(found)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_a_zero_of_0_is_read_in_formats_that_subtract_1() -> None:
    """Writers subtract 1 from the word, so that the next integer lends one."""
    case = gptq(symmetric=False)
    written = case.write(np.abs(weight()))  # so all zeros are 0
    np.testing.assert_array_equal(floats(read(tensors_of(written), case)), written.floats)


def test_groups_of_different_sizes_become_floats() -> None:
    case = CASES["gptq-act-order"]
    written = case.write(weight())
    tensors = tensors_of(written)
    index = np.r_[np.zeros(33, np.int32), np.ones(31, np.int32)]
    q, scales = floats(read(tensors, case)), written.tensors["scales"].astype(np.float32)
    was = written.tensors["g_idx"]
    integers = np.rint(q / scales.T[:, was])
    tensors[f"{MODULE}.g_idx"] = stored(index)
    found = read(tensors, case)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, integers * scales.T[:, index], rtol=1e-6)


@pytest.mark.parametrize("shape", [(130, 200), (128, 128), (1, 300)])
def test_blocks_of_fp8_may_be_cut_off_at_the_end(shape: tuple[int, int]) -> None:
    bits = np.random.default_rng(0).integers(0, 127, shape).astype(np.uint8)
    scales = np.arange(1, 1 + -(-shape[0] // 128) * -(-shape[1] // 128), dtype=np.float32)
    scales = scales.reshape(-(-shape[0] // 128), -1)
    tensors = {
        f"{MODULE}.weight": StoredTensor("F8_E4M3", shape, bits),
        f"{MODULE}.weight_scale_inv": stored(scales),
    }
    expected = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    for i, j in np.ndindex(*shape):
        expected[i, j] *= scales[i // 128, j // 128]
    case = CASES["fp8-block"]
    found = read(tensors, case, weight_block_size=[128, 128])
    np.testing.assert_array_equal(floats(found), expected)


def test_scales_may_be_powers_of_two_in_a_byte() -> None:
    tensors = {
        f"{MODULE}.weight": StoredTensor("F8_E4M3", (1, 2), np.array([[0x38, 0xC0]], np.uint8)),
        f"{MODULE}.weight_scale_inv": StoredTensor("F8_E8M0", (1, 1), np.array([[130]], np.uint8)),
    }
    assert floats(read(tensors, CASES["fp8-block"])).tolist() == [[8.0, -16.0]]


@pytest.mark.parametrize(
    ("name", "kind"), [("f8e4m3", ml_dtypes.float8_e4m3fn), ("f8e5m2", ml_dtypes.float8_e5m2)]
)
def test_every_float8_code_has_its_value(name: str, kind: type) -> None:
    expected = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    np.testing.assert_array_equal(CODEBOOKS[name], expected)


def test_mxfp4_has_a_power_of_two_for_32_inputs_of_each_expert() -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (3, 4, 2, 16)).astype(np.uint8)
    scales = rng.integers(120, 130, (3, 4, 2)).astype(np.uint8)
    name = "model.layers.0.mlp.experts"
    tensors = {
        f"{name}.down_proj_blocks": stored(blocks),
        f"{name}.down_proj_scales": stored(scales),
        f"{name}.down_proj_bias": stored(np.zeros((3, 4), np.float32)),
    }
    found = merge_quantized({"quantization_config": {"quant_method": "mxfp4"}}, tensors)
    assert set(found) == {f"{name}.{i}.down_proj.weight" for i in range(3)} | {
        f"{name}.down_proj_bias"
    }
    values = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for i in range(3):
        expected = np.zeros((4, 64), np.float32)
        for row, column in np.ndindex(4, 64):
            byte = blocks[i, row, column // 32, column % 32 // 2]
            code = byte >> 4 if column % 2 else byte & 15
            sign = -1 if code >= 8 else 1
            power = 2.0 ** (int(scales[i, row, column // 32]) - 127)
            expected[row, column] = sign * values[code % 8] * power
        matrix = found[f"{name}.{i}.down_proj.weight"]
        assert isinstance(matrix, QuantizedTensor)
        np.testing.assert_array_equal(floats(matrix.read()), expected)


def test_tensors_that_are_not_quantised_stay() -> None:
    case = CASES["gptq"]
    tensors = tensors_of(case.write(weight())) | {"lm_head.weight": stored(weight())}
    found = merge_quantized(config(case), tensors)
    assert set(found) == {f"{MODULE}.weight", "lm_head.weight"}
    assert found["lm_head.weight"] is tensors["lm_head.weight"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gptq", "GPTQ 4 bit, groups of 32"),
        ("gptq-channel", "GPTQ 4 bit, a scale per output"),
        ("gptq-8bit", "GPTQ 8 bit, groups of 32, act-order"),
        ("awq", "AWQ 4 bit, groups of 32"),
        ("fp8-tensor", "FP8"),
        ("fp8-block", "FP8 in blocks of 32x32"),
        ("w4a16", "compressed-tensors W4A16, groups of 32"),
        ("w8a8", "compressed-tensors W8A8, a scale per output"),
        ("compressed-fp8", "compressed-tensors FP8"),
        ("nf4", "bitsandbytes NF4"),
        ("llm-int8", "bitsandbytes int8, a scale per output"),
        ("modelslim-w8a8", "ModelSlim W8A8"),
        ("golden-stick-a16w4", "golden-stick W4A16"),
    ],
)
def test_a_format_is_told_in_words(name: str, words: str) -> None:
    assert describe(config(CASES[name])).text == words


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": True}, "GPTQ 4 bit"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "AWQ 4 bit"),
    ],
)
def test_quantisation_is_read_from_older_files(
    tmp_path: Path, file: str, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    (tmp_path / file).write_text(json.dumps(options))
    assert describe(read_config(tmp_path)).text.startswith(f"{words}, groups of 128")


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("quant_model_description.json", "ModelSlim"),
        ("quant_model_description_w8a8.json", "ModelSlim"),
        ("quantization_description.json", "golden-stick"),
    ],
)
def test_quantisation_is_read_from_the_description_of_tensors(
    tmp_path: Path, file: str, tool: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {}}))
    types = {"a.weight": "W8A8", "a.bias": "FLOAT", "b.weight": "W8A8_DYNAMIC", "version": "1"}
    types |= {"a.kv_cache_scale": "C8", "model_quant_type": "W8A8"}
    (tmp_path / file).write_text(json.dumps({**types, "group_size": 0, "metadata": {}}))
    assert describe(read_config(tmp_path)).text == f"{tool} W8A8, W8A8_DYNAMIC"


@pytest.mark.parametrize("sign", [1, 0])
def test_a_bias_is_taken_out_of_the_bias_of_rounded_inputs(sign: int) -> None:
    """By hand: y = (x / 0.0625 - 7) W + quant_bias, times deq_scale; a zero bias stays zero."""
    written = CASES["modelslim-w8a8"].write(weight())
    bias = sign * np.linspace(-1, 1, 48)
    deq_scale = written.tensors["deq_scale"].astype(np.float64)
    written.tensors["quant_bias"] += np.rint(bias / deq_scale).astype(np.int32)
    found = merge_quantized(config(CASES["modelslim-w8a8"]), tensors_of(written))
    np.testing.assert_allclose(
        found[f"{MODULE}.bias"].bits, bias, atol=sign * deq_scale.max() * 0.51
    )


def test_a_stored_bias_is_kept() -> None:
    case = CASES["modelslim-w8a8"]
    tensors = tensors_of(case.write(weight())) | {f"{MODULE}.bias": stored(np.ones(48))}
    assert merge_quantized(config(case), tensors)[f"{MODULE}.bias"] is tensors[f"{MODULE}.bias"]


@pytest.mark.parametrize("real", [0.0, 1.0])
@pytest.mark.parametrize("is_float", [False, True])
def test_biases_of_norms_move_into_the_matrices_behind(real: float, is_float: bool) -> None:
    """By hand: W (x + shift) + bias, where the file's bias is the real one less W shift."""
    shift = np.random.default_rng(1).normal(0, 2, 64).astype(np.float32)
    layer, tensors, case = "model.layers.0", dict[str, StoredTensor](), CASES["modelslim-w8a8"]
    tensors[f"{layer}.post_attention_layernorm.bias"] = stored(shift)
    tensors[f"{layer}.post_attention_layernorm.weight"] = stored(np.ones(64, np.float32))
    tensors[f"{layer}.mlp.gate_proj.weight"] = stored(weight())
    tensors[f"{layer}.mlp.gate_proj.bias"] = stored((real - weight() @ shift).astype(np.float32))
    written = case.write(weight())
    deq_scale = written.tensors["deq_scale"]
    written.tensors["quant_bias"] += np.rint((real - weight() @ shift) / deq_scale).astype(np.int32)
    tensors |= tensors_of(written)
    if is_float:  # the other matrix, too
        tensors = {n: t for n, t in tensors.items() if not n.startswith(MODULE)}
        tensors[f"{MODULE}.weight"] = tensors[f"{layer}.mlp.gate_proj.weight"]
        tensors[f"{MODULE}.bias"] = tensors[f"{layer}.mlp.gate_proj.bias"]
    types = {f"{MODULE}.weight": "FLOAT" if is_float else "W8A8", "other.weight": "W8A8"}
    found = merge_quantized(config(case, types=types), tensors)
    assert f"{layer}.post_attention_layernorm.bias" not in found
    for module in (MODULE, f"{layer}.mlp.gate_proj"):
        expected = np.full(48, real)
        atol = 0.001 + np.abs(shift).sum() * 0.51 * deq_scale.max() / 0.0625
        np.testing.assert_allclose(found[f"{module}.bias"].bits, expected, atol=atol * bool(real))
    if not is_float:  # it is added to inputs that are rounded
        np.testing.assert_array_equal(found[f"{MODULE}.weight"].inputs.shift, shift)


def without(leaf: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(f"{MODULE}.{leaf}")


def cut(leaf: str) -> Callable[[Tensors], None]:
    """One less in the last size."""

    def change(tensors: Tensors) -> None:
        old = tensors[f"{MODULE}.{leaf}"]
        shape = (*old.shape[:-1], old.shape[-1] - 1)
        bits = np.ascontiguousarray(old.bits.reshape(old.shape)[..., :-1])
        tensors[f"{MODULE}.{leaf}"] = StoredTensor(old.dtype, shape, bits)

    return change


def put(leaf: str, value: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(f"{MODULE}.{leaf}", stored(value))


BROKEN = [
    ("gptq", without("scales"), "up_proj.scales' is missing"),
    ("gptq", without("qzeros"), "up_proj.qzeros' is missing"),
    ("gptq", cut("scales"), r"up_proj.scales' is \[2, 47\]: expected \[2, 48\]"),
    ("gptq", cut("qzeros"), r"up_proj.qzeros' is \[2, 5\]: expected 4 or 8 bits for each of 48"),
    ("gptq", cut("g_idx"), r"up_proj.g_idx' is \[63\]: expected \[64\]"),
    ("gptq", put("g_idx", np.full(64, 2, np.int32)), "g_idx'.*groups 2 to 2, expected 0 to 1"),
    ("gptq", put("g_idx", np.full(64, -1, np.int32)), "g_idx'.*groups -1 to -1"),
    ("gptq", put("qweight", np.zeros((8, 48), np.int8)), "qweight' is I8, expected I32"),
    ("gptq", put("qweight", np.zeros((0, 48), np.int32)), r"qweight' is \[0, 48\].* a matrix"),
    ("awq", without("qzeros"), "up_proj.qzeros' is missing"),
    ("awq", cut("qzeros"), r"up_proj.qzeros' is \[2, 5\]: expected \[2, 6\]"),
    ("awq", put("qweight", np.zeros((63, 6), np.int32)), "qweight'.*an even number of inputs"),
    ("awq", cut("scales"), r"up_proj.scales' is \[2, 47\]"),
    ("fp8-tensor", without("weight_scale"), "up_proj.weight_scale' is missing"),
    ("fp8-block", cut("weight_scale_inv"), r"up_proj.weight_scale_inv' is \[2, 1\].*32x32"),
    ("w4a16", without("weight_scale"), "up_proj.weight_scale' is missing"),
    ("w4a16", without("weight_shape"), "up_proj.weight_shape' is missing"),
    ("w4a16", cut("weight_packed"), r"weight_packed' is \[48, 7\].*weights \[48, 64\]"),
    ("w4a16", put("weight_shape", np.array([-1, 64])), r"weight_packed'.*weights \[-1, 64\]"),
    ("w4a16", put("weight_shape", np.array([2**40, 64])), "weight_packed'"),
    ("w4a16-asymmetric", cut("weight_zero_point"), r"weight_zero_point' is \[6, 1\]"),
    ("w4a16-act-order", put("weight_g_idx", np.full(64, 9, np.int32)), "weight_g_idx'.*9 to 9"),
    ("w8a8", without("weight_scale"), "up_proj.weight_scale' is missing"),
    ("w8a8", put("weight_scale", np.zeros((48, 5), np.float32)), "groups that divide 64 inputs"),
    ("nf4", without("weight.absmax"), "up_proj.weight.absmax' is missing"),
    ("nf4", cut("weight.absmax"), r"up_proj.weight.absmax' is \[95\]: expected \[96\]"),
    ("nf4", without("weight.quant_state.bitsandbytes__nf4"), "quant_state.* is missing"),
    ("nf4", cut("weight.quant_state.bitsandbytes__nf4"), "quant_state.*expected a JSON object"),
    ("nf4-double", cut("weight.nested_absmax"), "weight.nested_absmax' is"),
    ("modelslim-w8a16", without("weight_scale"), "up_proj.weight_scale' is missing"),
    ("modelslim-w8a16", cut("weight_offset"), r"weight_offset' is \[48, 0\]: .* 48 x 1"),
    ("modelslim-w8a16", put("weight", weight()), "weight' is F32, but W8A16 in quant_model_desc"),
    ("modelslim-w8a8", without("input_scale"), "up_proj.input_scale' is missing"),
    ("modelslim-w8a8", without("deq_scale"), "up_proj.deq_scale' is missing"),
    ("modelslim-w8a8", cut("quant_bias"), r"quant_bias' is \[47\]: expected \[48\]"),
    ("modelslim-w4a8", cut("weight_scale"), r"weight_scale' is \[48, 0\]: .*divide 64"),
    ("golden-stick-a16w4", cut("weight_scale"), r"weight' is \[64, 24\]: expected two of 47"),
    ("golden-stick-a8w8", cut("input_scale"), r"input_scale' is \[63\].*or \[64\]"),
    ("llm-int8", without("SCB"), "up_proj.SCB' is missing"),
    ("llm-int8", put("weight_format", np.uint8(1)), "weight_format'.*expected 0"),
]


@pytest.mark.parametrize(("name", "change", "problem"), BROKEN)
def test_the_error_of_a_broken_matrix_names_the_tensor(
    name: str, change: Callable[[Tensors], None], problem: str
) -> None:
    case = CASES[name]
    tensors = tensors_of(case.write(weight()))
    change(tensors)
    with pytest.raises(StartError, match=problem):
        merge_quantized(config(case), tensors)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("gptq", {"quant_method": "gptqq"}, "'gptqq', which is not supported; did you mean gptq"),
        ("gptq", {"quant_method": None}, "quant_method None"),
        ("gptq", {"bits": 3}, "GPTQ with bits 3, expected 4 or 8"),
        ("gptq", {"bits": "4"}, "GPTQ with bits '4'"),
        ("gptq", {"bits": 8}, "qzeros'.*4 bits, but config.json has 8"),
        ("gptq", {"group_size": 16}, "scales'.*expected 4 groups of 16"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin', expected one of"),
        ("awq", {"bits": 8}, "AWQ with bits 8, expected 4"),
        ("awq", {"version": "gemv"}, "version 'gemv', expected 'gemm'"),
        ("fp8-block", {"weight_block_size": [0, 128]}, "weight_block_size.*sizes over 0"),
        ("fp8-block", {"weight_block_size": "128"}, "weight_block_size '128', expected two"),
        ("w4a16", {"format": "marlin-24"}, "group_0 has format 'marlin-24', expected one of"),
        (
            "modelslim-w8a8",
            {"types": {}},
            "'model.*weight' is I8, but of no type in quant_model_desc",
        ),
        (
            "modelslim-w8a8",
            {"types": FLOAT},
            "'model.*weight' is I8, but FLOAT in quant_model_desc",
        ),
        ("modelslim-w8a8", {"types": {"a": "W2A2"}}, "type 'W2A2', expected one of W8A16, W8A8"),
        ("modelslim-w8a8", {"types": None}, "'ascend', but there is no quant_model_description"),
        ("w4a16", {"config_groups": {}}, "without config_groups"),
        ("w4a16", {"config_groups": {"a": {"weights": None}}}, "whose a has no weights"),
        ("w4a16", {"config_groups": {"a": {"weights": {"num_bits": 2}}}}, "2 bits of type 'int'"),
        ("w4a16", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
    ],
)
def test_a_configuration_that_is_not_read_is_refused(
    name: str, changes: dict[str, Any], problem: str
) -> None:
    case = CASES[name]
    with pytest.raises(StartError, match=problem):
        merge_quantized(config(case, **changes), tensors_of(case.write(weight())))
