"""Release of a quantised file's memory after OpenVINO has packed it."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

from mindspore_serving.llm.checkpoint.gguf.decoding import decode
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import open_part
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino.fusion import plugin_fuses_mlp
from mindspore_serving.llm.runtimes.openvino.opening import build_model
from mindspore_serving.llm.runtimes.openvino.opening import open_runner as open_openvino
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.repacking import packing_order, releasing
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.runtimes.pages import in_pages
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm.gguf_files import HIDDEN, LAYERS, VOCAB, random_blocks, write_model
from tests.waiting import eventually

SMALL = {"kv_cache_memory": 2**24, "num_threads": 1}


def logits(runner: Runner, count: int) -> np.ndarray:
    """Of `count` sequences of one token."""
    return np.array(runner.run(Step(tuple(Row([7], 0, [index], 1) for index in range(count)))))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_products_stay_right_after_integers_are_released(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind=kind)
    reference = open_runner(path, "torch", EngineConfig(**SMALL))
    runner = open_openvino(path, EngineConfig(**SMALL))
    expected = logits(reference, 1)
    for count in (1, 2, 7, 16, 33, 64):
        error = np.abs(logits(runner, count) - expected).max() / np.abs(expected).max()
        assert error < 0.1, f"{count} rows are off by {error:.2g}"
    runner.close()
    reference.close()


def test_integers_with_minimums_are_multiplied_without_zeros() -> None:
    """A float zero for each group keeps the plugin from multiplying integers."""
    form = decode("Q4_1", random_blocks("Q4_1", 32, 64), 64)
    stored = QuantizedTensor("Q4_1", form.shape, form.values, lambda: form)
    weights = OpenVINOWeights(
        Checkpoint(Path(), {}, {"w": stored}), "f32", min_weights_with_minimums=0
    )
    given = opset.parameter([-1, 64], ov.Type.f32)
    model = ov.Model([opset.result(weights.product(given, "w"))], [given], "m")
    kinds = [node.get_type_name() for node in model.get_ops()]
    assert kinds.count("MatMul") == 2
    assert "Subtract" not in kinds


def with_form(kind: str, precision: str) -> tuple[OpenVINOWeights, list[str]]:
    """The weights of one matrix, and the kinds of nodes that multiply by it."""
    form = decode(kind, random_blocks(kind, 32, 256), 256)
    stored = QuantizedTensor(kind, form.shape, form.values, lambda: form)
    weights = OpenVINOWeights(
        Checkpoint(Path(), {}, {"w": stored}), precision, min_weights_with_minimums=0
    )
    given = opset.parameter([-1, 256], ov.Type.f32)
    model = ov.Model([opset.result(weights.product(given, "w"))], [given], "m")
    return weights, [node.get_type_name() for node in model.get_ops()]


def test_minimums_are_separate_products_without_amx() -> None:
    """Where the plugin multiplies integers; with AMX it does not, and they stay zeros."""
    _, kinds = with_form("Q4_K", "bf16")
    assert ("Subtract" in kinds) == plugin_fuses_mlp()
    assert kinds.count("MatMul") == (1 if plugin_fuses_mlp() else 2)


def test_scales_are_released_with_their_integers() -> None:
    weights, _ = with_form("Q8_0", "f32")
    sizes = sorted(array.nbytes for array in weights.constants.releasable.values())
    assert sizes == [32 * 8 * 4, 32 * 256]


def test_packing_order_follows_the_layers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind="Q8_0")
    part = open_part(path, EngineConfig(**SMALL))
    weights = OpenVINOWeights(part.checkpoint, "f32", gathers=True)
    model = build_model(OpenVINOOps(weights), part)
    groups = packing_order(model, weights.constants.releasable)
    assert [name for name, _ in groups] == [f"key_cache.{layer}" for layer in range(LAYERS)]
    # Queries, keys and values of the first; of others also what follows the attention before.
    assert [len(arrays) for _, arrays in groups] == [2 * 3, 2 * 7, 2 * 7]


def test_arrays_are_released_when_their_cache_is_written() -> None:
    arrays = [in_pages((4096,), np.uint8) for _ in range(2)]
    for array in arrays:
        array[:] = 1
    caches = [np.zeros(8), np.zeros(8)]
    with releasing([(cache, [array]) for cache, array in zip(caches, arrays, strict=True)]):
        caches[0][3] = 1
        eventually(lambda: not arrays[0].any())
        assert arrays[1].all()


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_rows_are_read_from_the_file(tied: bool, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind="Q8_0", tied=tied)
    part = open_part(path, EngineConfig(**SMALL))
    weights = OpenVINOWeights(part.checkpoint, "f32", gathers=True)
    build_model(OpenVINOOps(weights), part)
    (gather,) = weights.gathered.values()
    tokens = np.array([7, 0, 7, VOCAB - 1], np.int32)
    expected = part.checkpoint.f32("model.embed_tokens.weight")[tokens]
    np.testing.assert_array_equal(gather(tokens), expected)
    whole = OpenVINOWeights(part.checkpoint, "f32")
    build_model(OpenVINOOps(whole), part)
    held, all_held = (sum(one.nbytes for one in some.constants.kept) for some in (weights, whole))
    assert tied or all_held - held >= VOCAB * HIDDEN
