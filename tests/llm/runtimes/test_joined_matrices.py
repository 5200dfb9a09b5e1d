"""Queries, keys and values are computed by one matrix if they are stored alike."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

from mindspore_serving.llm.checkpoint.gguf.decoding import decode
from mindspore_serving.llm.checkpoint.packing import Packed, pack, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import open_part
from mindspore_serving.llm.runtimes.openvino.constants import MatrixForm
from mindspore_serving.llm.runtimes.openvino.fusion import plugin_fuses_mlp
from mindspore_serving.llm.runtimes.openvino.opening import build_model, open_runner
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import WITHOUT_VNNI, options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.repacking import can_join
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.gguf_files import LAYERS, random_blocks, write_model

INPUTS = 256
SIZES = {"q": 48, "k": 32, "v": 16}
RANDOM = np.random.default_rng(3)
FLOATS = {name: RANDOM.normal(0, 1, (size, INPUTS)) for name, size in SIZES.items()}
SMALL = EngineConfig(kv_cache_memory=2**24, num_threads=2, dtype="f32")


def stored(kind: str, name: str) -> StoredTensor | QuantizedTensor:
    matrix = FLOATS[name].astype(np.float32)
    if kind == "F32":
        return StoredTensor(kind, matrix.shape, matrix)
    if kind == "BF16":
        return StoredTensor(kind, matrix.shape, to_bf16(matrix))
    packed = pack(matrix, 8) if kind == "int8" else decode(kind, blocks(kind, name), INPUTS)
    return QuantizedTensor(kind, packed.shape, packed.values, lambda: packed)


def blocks(kind: str, name: str) -> np.ndarray:
    return random_blocks(kind, SIZES[name], INPUTS, seed=SIZES[name])


def products(kinds: dict[str, str], *, is_joined: bool) -> tuple[list[np.ndarray], list[str], dict]:
    """What q, k and v of those kinds give, the types of nodes, and the float32 matrices."""
    tensors = {name: stored(kind, name) for name, kind in kinds.items()}
    checkpoint = Checkpoint(Path(), {}, tensors)
    joins = (lambda _: True) if is_joined else None
    weights = OpenVINOWeights(checkpoint, "f32", joins=joins, min_weights_with_minimums=0)
    x = opset.parameter([-1, INPUTS], ov.Type.f32)
    found = weights.products(x, list(kinds))
    model = ov.Model([opset.result(y) for y in found], [x], "m")
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
    rows = np.random.default_rng(5).normal(0, 1, (3, INPUTS)).astype(np.float32)
    request.infer([rows])
    results = [np.array(tensor.data) for tensor in request.output_tensors]
    expected = {name: rows @ checkpoint.f32(name).T for name in kinds}
    return results, [node.get_type_name() for node in model.get_ops()], expected


@pytest.mark.parametrize("kind", ["F32", "BF16", "int8", "Q8_0", "Q4_0", "Q4_K"])
def test_joined_matrices_of_equal_type_give_their_products(kind: str) -> None:
    results, kinds, expected = products(dict.fromkeys(SIZES, kind), is_joined=True)
    with_minimums = 2 if kind == "Q4_K" else 1
    assert kinds.count("MatMul") == with_minimums
    for result, name in zip(results, SIZES, strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-4)


def test_matrix_of_another_type_stays_apart() -> None:
    """As in files of the mix Q4_K_M, whose values have more bits than their queries."""
    results, kinds, expected = products({"q": "Q4_0", "k": "Q4_0", "v": "Q8_0"}, is_joined=True)
    assert kinds.count("MatMul") == 2
    for result, name in zip(results, SIZES, strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-4)


def test_matrices_are_not_joined_without_permission() -> None:
    _, kinds, _ = products(dict.fromkeys(SIZES, "F32"), is_joined=False)
    assert kinds.count("MatMul") == 3


def test_inputs_in_another_order_keep_a_matrix_apart() -> None:
    packed = decode("Q8_0", blocks("Q8_0", "q"), INPUTS)
    mixed = Packed(
        packed.values, packed.scales, 8, packed.shape, packed.group,
        order=np.arange(INPUTS, dtype=np.int64)[::-1],
    )  # fmt: skip
    tensors = {
        "q": QuantizedTensor("GPTQ", mixed.shape, mixed.values, lambda: mixed),
        "k": QuantizedTensor("GPTQ", mixed.shape, mixed.values, lambda: mixed),
    }
    weights = OpenVINOWeights(Checkpoint(Path(), {}, tensors), "f32", joins=lambda _: True)
    x = opset.parameter([-1, INPUTS], ov.Type.f32)
    y = weights.products(x, ["q", "k"])
    model = ov.Model([opset.result(one) for one in y], [x], "m")
    assert [node.get_type_name() for node in model.get_ops()].count("MatMul") == 2


def test_layer_joins_qkv_but_not_gate_and_up(tmp_path: Path) -> None:
    part = open_part(write_model(tmp_path / "model.gguf", kind="Q8_0"), SMALL)
    weights = OpenVINOWeights(part.checkpoint, "f32", gathers=True, joins=lambda _: True)
    model = build_model(OpenVINOOps(weights), part)
    kinds = [node.get_type_name() for node in model.get_ops()]
    head = 1
    assert kinds.count("MatMul") == LAYERS * len(["qkv", "o", "gate", "up", "down"]) + head


@pytest.mark.skipif(
    os.environ.get("ONEDNN_MAX_CPU_ISA") in WITHOUT_VNNI
    or "avx512f" not in Path("/proc/cpuinfo").read_text(),
    reason="the plugin packs otherwise there",
)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "int8"])
def test_matrices_that_would_be_copied_twice_are_not_joined(kind: str) -> None:
    """With AMX the plugin joins them itself; elsewhere the copy is given back when it is packed,
    but one of 16 bits that is computed in 32 is read again."""
    options = options_from(EngineConfig(), capabilities())
    is_read_again = options.precision == "f32" and kind in ("F16", "BF16")
    assert can_join(options, MatrixForm(kind)) != (plugin_fuses_mlp() or is_read_again)
    assert can_join(options, MatrixForm("int4", 32))


@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE_VNNI"])
def test_joining_is_decided_under_an_isa_limit(limit: str) -> None:
    """The limit counts when a process begins."""
    code = """
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.constants import MatrixForm
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.repacking import can_join
options = options_from(EngineConfig(), capabilities())
for form in (MatrixForm("int4"), MatrixForm("int4", 0, True), MatrixForm("int8")):
    print(can_join(options, form) in (True, False))
"""
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=limited, text=True) == 3 * "True\n"


def test_file_pages_are_released_after_packing(tmp_path: Path) -> None:
    directory = checkpoints.build("llama", tmp_path, dtype="bfloat16")
    runner = open_runner(directory, SMALL)
    assert plugin_fuses_mlp() or mapped_kilobytes(directory / "model.safetensors") == 0
    logits = runner.run(Step((Row([1, 2, 3], 0, [0], 1),)))
    assert np.isfinite(logits).all()
    runner.close()


def mapped_kilobytes(path: Path) -> int:
    """How much of a mapped file is in this process's memory."""
    maps = Path("/proc/self/smaps").read_text()
    found = re.findall(rf"{re.escape(str(path))}\n(?:.+\n)*?Rss:\s+(\d+) kB", maps)
    assert found, f"{path} is not mapped"
    return sum(map(int, found))


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q5_K", "Q6_K"])
def test_requantised_weights_differ_by_half_a_step(kind: str) -> None:
    """Q6_K has a scale for 16 inputs, by which the plugin would round all inputs; minimums cost a
    small product more time than eight bits do."""
    weights, exact = weights_of(kind)
    weights.matrix("q")
    assert weights.constants.group == 32
    assert not weights.constants.minimums
    (values, scales) = weights.constants.releasable.values()
    matrix, whole = unpack(exact), values.reshape(SIZES["q"], -1, 32).astype(np.float32)
    largest = np.abs(matrix).reshape(whole.shape).max(-1, keepdims=True)
    error = np.abs((whole * scales.reshape(*whole.shape[:2], 1)) - matrix.reshape(whole.shape))
    assert error.max() > 0
    assert (error <= largest / 254 * 1.01).all()


def weights_of(kind: str, **options: Any) -> tuple[OpenVINOWeights, Packed]:
    """With one matrix, "q", and what it is in the file."""
    exact = decode(kind, blocks(kind, "q"), INPUTS)
    tensor = QuantizedTensor(kind, exact.shape, exact.values, lambda: exact)
    return OpenVINOWeights(Checkpoint(Path(), {}, {"q": tensor}), "f32", **options), exact


@pytest.mark.parametrize(("least", "is_rounded"), [(0, False), (1, True)])
def test_minimums_are_kept_by_size_of_the_joined_matrix(least: int, *, is_rounded: bool) -> None:
    """`least` more than the weights of queries, keys and values together."""
    tensors = {name: stored("Q4_K", name) for name in SIZES}
    total = sum(SIZES.values()) * INPUTS
    weights = OpenVINOWeights(
        Checkpoint(Path(), {}, tensors), "f32",
        joins=lambda _: True, min_weights_with_minimums=total + least,
    )  # fmt: skip
    weights.products(opset.parameter([-1, INPUTS], ov.Type.f32), list(SIZES))
    assert bool(weights.constants.minimums) != is_rounded
    assert weights.constants.forms == {MatrixForm("int8" if is_rounded else "int4", 32)}


@pytest.mark.parametrize(("kind", "group"), [("Q6_K", 16), ("Q4_1", 32)])
def test_exact_weights_are_not_requantised(kind: str, group: int) -> None:
    weights, exact = weights_of(kind, is_exact=True)
    weights.matrix("q")
    assert weights.constants.group == group
    assert weights.constants.forms == {MatrixForm.of(exact)}
