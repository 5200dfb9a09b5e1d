"""Tensors of GGUF files become what the gguf package makes of them, number by number."""

from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from gguf import GGUFWriter
from openvino import opset13 as opset

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMATS, decode
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.packing import unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from tests.llm.gguf_files import KINDS, add_tensor, dequantized, finish, random_blocks

EXACT: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
ROUNDED = (
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "IQ2_XS",
    "IQ2_S",
    "IQ1_M",
)  # once more, to int8, where inputs are rounded


def test_every_type_with_blocks_is_tried() -> None:
    assert set(KINDS) == set(FORMATS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_is_decoded_exactly(kind: str) -> None:
    rows = random_blocks(kind, 7, 512)
    packed = decode(kind, rows, 512)
    assert packed.shape == (7, 512)
    np.testing.assert_array_equal(unpack(packed), dequantized(kind, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_openvino_multiplies_and_gathers_decoded_blocks(kind: str, tmp_path: Path) -> None:
    rows = random_blocks(kind, 48, 512)
    x = np.random.default_rng(1).normal(0, 1, (3, 512)).astype(np.float32)
    expected = dequantized(kind, rows)
    product, gathered = _computed(kind, rows, x, tmp_path)
    np.testing.assert_allclose(gathered, expected[[5, 0, 47]], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(product, x @ expected.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_a_group_of_equal_values_stays_exact(kind: str, tmp_path: Path) -> None:
    rows = random_blocks(kind, 48, 512)
    rows.reshape(48, -1, {"Q4_1": 20, "Q4_K": 144}[kind])[::2, :, :2] = 0  # no scale
    x = np.random.default_rng(1).normal(0, 1, (3, 512)).astype(np.float32)
    expected = dequantized(kind, rows)
    product, gathered = _computed(kind, rows, x, tmp_path)
    np.testing.assert_allclose(gathered, expected[[5, 0, 47]], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(product, x @ expected.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_exact", [True, False])
def test_nothing_is_subtracted_from_integers_that_are_multiplied(
    is_exact: bool, tmp_path: Path
) -> None:
    """With a float beside each scale the plugin multiplies none, in bfloat16 as in float32."""
    rows = random_blocks("Q4_1", 48, 512)
    stored = QuantizedTensor("Q4_1", (48, 512), rows, partial(decode, "Q4_1", rows, 512))
    checkpoint = Checkpoint(tmp_path, {}, {"w": stored})
    weights = OpenVINOWeights(checkpoint, "bf16", is_exact=is_exact, min_weights_with_minimums=0)
    given = opset.parameter([-1, 512], np.float32)
    model = ov.Model([opset.result(weights.product(given, "w"))], [given], "m")
    kinds = {node.get_type_name() for node in model.get_ops()}
    assert ("Subtract" in kinds) == is_exact


@pytest.mark.skipif("BF16" not in capabilities(), reason="this processor does not compute bf16")
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q5_K"])
def test_products_in_bfloat16_are_near(kind: str, tmp_path: Path) -> None:
    rows = random_blocks(kind, 48, 512)
    x = np.random.default_rng(1).normal(0, 1, (16, 512)).astype(np.float32)
    expected = x @ dequantized(kind, rows).T
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
    product, _ = _computed(kind, rows, x, tmp_path, properties)
    assert np.abs(product - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_are_read_as_they_are(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 1, (4, 64)).astype(np.float32)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    add_tensor(writer, "some.weight", values, kind)
    blocks = open_gguf(finish(writer)).tensors["some.weight"]
    stored = StoredTensor(kind, blocks.shape, blocks.rows.view({"F32": "<f4"}.get(kind, "<u2")))
    found = Checkpoint(tmp_path, {}, {"some.weight": stored}).f32("some.weight")
    tolerance = {"F32": 0, "F16": 1e-3, "BF16": 1e-2}[kind]
    np.testing.assert_allclose(found, values, rtol=tolerance)


@pytest.mark.parametrize(
    ("number", "name", "near"),
    [
        (15, "Q8_K", "Q8_0"),
        (40, "NVFP4", "Q4_K"),
        (9, "Q8_1", "Q8_0"),
        (250, "number 250", "Q8_0"),
    ],
)
def test_an_unsupported_type_is_refused_with_a_suggestion(
    number: int, name: str, near: str, tmp_path: Path
) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    add_tensor(writer, "some.weight", np.zeros((2, 32), np.float32))
    path = finish(writer)
    content = bytearray(path.read_bytes())
    at = content.index(b"some.weight") + len("some.weight") + 4 + 2 * 8  # behind its dimensions
    content[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(StartError, match=f"some.weight.* {name}, .* file of this model in {near}"):
        open_gguf(path)


def _computed(
    kind: str,
    rows: np.ndarray,
    x: np.ndarray,
    directory: Path,
    properties: dict[str, object] = EXACT,
) -> tuple[np.ndarray, np.ndarray]:
    """x times the matrix of `rows`, and its rows 5, 0 and 47."""
    stored = QuantizedTensor(kind, (48, 512), rows, partial(decode, kind, rows, 512))
    checkpoint = Checkpoint(directory, {}, {"w": stored})
    weights = OpenVINOWeights(
        checkpoint, "f32", is_exact=kind in ROUNDED, min_weights_with_minimums=0
    )
    given = opset.parameter([-1, 512], np.float32)
    product = weights.product(given, "w")
    ids = opset.constant(np.array([5, 0, 47], np.int32))
    gathered = opset.gather(weights.table("w"), ids, opset.constant(np.int32(0)))
    model = ov.Model([opset.result(product), opset.result(gathered)], [given], "m")
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    found = request.infer([x])
    return np.array(found[0]), np.array(found[1])
