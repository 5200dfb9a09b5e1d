"""What OpenVINO has packed of a quantised file is given back, and not read when it is gone."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as opset

from mindspore_serving.llm.checkpoint.gguf.decoding import decode
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino.opening import open_runner as open_openvino
from mindspore_serving.llm.runtimes.openvino.weights import Weights
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm.gguf_files import random_blocks, write_model

SMALL = {"kv_cache_memory": 2**24, "num_threads": 1}


def logits(runner: Runner, count: int) -> np.ndarray:
    """Of `count` sequences of one token."""
    return np.array(runner.run(Step(tuple(Row([7], 0, [index], 1) for index in range(count)))))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_every_number_of_rows_is_right_when_the_integers_are_given_back(
    kind: str, tmp_path: Path
) -> None:
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
    weights = Weights(Checkpoint(Path(), {}, {"w": stored}), "f32")
    given = opset.parameter([-1, 64], ov.Type.f32)
    model = ov.Model([opset.result(weights.product(given, "w"))], [given], "m")
    kinds = [node.get_type_name() for node in model.get_ops()]
    assert kinds.count("MatMul") == 2
    assert "Subtract" not in kinds
