"""States of models without a line of configuration: ONNX, and OpenVINO's ReadValue."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import Calls, config, serving
from tests.servable.foreign.test_triton import SEQUENCES

openvino = pytest.importorskip("openvino")
onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(0)


def write_onnx(path: Path) -> None:
    """A running sum, whose state is behind its first axis, and twice the sum."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Add", ["x", "sum"], ["next"]),
        helper.make_node("Add", ["next", "next"], ["y"]),
    ]
    x, state = (helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("x", "sum"))
    new, y = (helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("next", "y"))
    graph = helper.make_graph(nodes, "g", [state, x], [new, y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def write_openvino(path: Path) -> Any:
    """A recurrent layer with its state inside, which begins with ones; return it compiled."""
    from openvino import opset15 as ops

    x = ops.parameter([-1, 3], np.float32, name="x")
    x.output(0).set_names({"x"})
    first = ops.broadcast(ops.constant(np.float32(1)), ops.shape_of(x))
    weights = ops.constant(RNG.standard_normal((3, 3)).astype(np.float32))
    state = ops.read_value(first, "hidden")
    new = ops.tanh(ops.add(ops.matmul(state, weights, False, False), x))
    y = ops.negative(new)
    y.output(0).set_names({"y"})
    model = openvino.Model([ops.result(y)], [ops.assign(new, "hidden")], [x], "recurrent")
    openvino.save_model(model, path, compress_to_fp16=False)
    return openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def make_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def predict(sequence: Any, name: str, value: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    return next(iter(sequence.infer({name: value})[0].values()))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("models")
    write_onnx(directory / "sum.onnx")
    compiled = write_openvino(directory / "recurrent.xml")
    write_onnx(make_directory(directory / "described" / "1") / "model.onnx")
    (directory / "described" / "config.pbtxt").write_text(SEQUENCES)
    states = {"sum": "next"}
    with serving(
        directory,
        config(directory, "sum.onnx", states=states),
        config(directory, "recurrent.xml"),
        config(directory, "described"),
    ) as calls:
        yield calls, compiled


def test_paired_tensors_of_an_onnx_file_are_a_state(served: tuple[Calls, Any]) -> None:
    client = served[0].client("sum", "predict")
    rows = RNG.standard_normal((4, 3)).astype(np.float32)
    with client.sequence() as first, client.sequence() as second:
        for count in range(1, 5):
            answer = first.infer({"x": rows[count - 1]})[0]
            assert list(answer) == ["y"]
            np.testing.assert_allclose(answer["y"], 2 * rows[:count].sum(0), rtol=1e-5)
            np.testing.assert_allclose(predict(second, "x", rows[0]), 2 * count * rows[0], 1e-5)


def test_a_state_in_the_configuration_of_triton_is_kept(served: tuple[Calls, Any]) -> None:
    with served[0].client("described", "predict").sequence() as sequence:
        for count in range(1, 4):
            (answer,) = sequence.infer({"x": np.ones(3, np.float32)})
            assert {name: value.tolist() for name, value in answer.items()} == {
                "y": [2 * count] * 3
            }


def test_a_state_inside_an_openvino_model_is_that_of_a_sequence(
    served: tuple[Calls, Any],
) -> None:
    calls, compiled = served
    client = calls.client("recurrent", "predict")
    streams = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    expected = []
    for stream in streams:
        request = compiled.create_infer_request()
        expected.append([request.infer([row[None]], share_outputs=False)[0][0] for row in stream])
    with client.sequence() as first, client.sequence() as second:
        for index in range(5):
            for number, sequence in enumerate((first, second)):
                y = predict(sequence, "x", streams[number, index])
                np.testing.assert_allclose(y, expected[number][index], rtol=1e-5, atol=1e-6)
    (alone,) = client.infer({"x": streams[0, 0]})  # without a sequence: from the first state
    np.testing.assert_allclose(alone["y"], expected[0][0], rtol=1e-5, atol=1e-6)
