"""int8 models of NNCF: a network trained here keeps its accuracy on handwritten digits."""

from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.backends import quantization
from mindspore_serving.backends.quantization import quantize, read_data
from mindspore_serving.cli import main
from mindspore_serving.errors import InvalidInputs

pytest.importorskip("nncf")
onnx = pytest.importorskip("onnx")
datasets = pytest.importorskip("sklearn.datasets")


def trained(images, labels):
    """Weights of two layers that classify the images, by gradient descent."""
    random = np.random.default_rng(0)
    first, second = random.normal(0, 0.1, (64, 32)), random.normal(0, 0.1, (32, 10))
    targets = np.eye(10)[labels]
    for _ in range(300):
        hidden = np.maximum(images @ first, 0)
        scores = np.exp(hidden @ second)
        error = (scores / scores.sum(1, keepdims=True) - targets) / len(images)
        slope = (error @ second.T) * (hidden > 0)
        first -= 0.5 * images.T @ slope
        second -= 0.5 * hidden.T @ error
    return first.astype(np.float32), second.astype(np.float32)


def write_onnx(path, first, second, batch):
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["image", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["scores"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, size])
        for name, size in (("image", 64), ("scores", 10))
    ]
    weights = [numpy_helper.from_array(w, n) for w, n in ((first, "first"), (second, "second"))]
    graph = helper.make_graph(nodes, "digits", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """digits.onnx, with any batch; four.onnx with batches of four; data.npz, which it never saw."""
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    directory = tmp_path_factory.mktemp("digits")
    weights = trained(images[:1200], labels[:1200])
    write_onnx(directory / "digits.onnx", *weights, "batch")
    write_onnx(directory / "four.onnx", *weights, 4)
    np.savez(directory / "data.npz", image=images[1200:], labels=labels[1200:])
    return directory


def test_a_quantised_model_keeps_its_accuracy(digits, tmp_path):
    comparison = quantize(
        str(digits / "digits.onnx"), str(tmp_path / "small.xml"), str(digits / "data.npz")
    )
    before, after = comparison.accuracy
    assert comparison.num_instances == 597
    assert before > 0.85
    assert after > before - 0.02
    assert comparison.agreement > 0.97
    assert 0 < comparison.relative_error < 0.1


def test_its_weights_have_8_bits_and_are_served(digits, tmp_path, capsys):
    target = tmp_path / "small.xml"
    data = str(digits / "data.npz")
    assert main(["quantize", str(digits / "four.onnx"), str(target), "--calibrate", data]) == 0
    assert "accuracy by labels: " in capsys.readouterr().out
    import openvino

    model = openvino.Core().read_model(target)
    kinds = {node.get_element_type().to_string() for node in model.get_ops()}
    assert "i8" in kinds or "u8" in kinds
    assert model.inputs[0].get_partial_shape().to_shape()[0] == 4


def test_the_difference_of_answers_is_computed_as_by_hand():
    before = quantization.Answers(np.array([[3.0, 0.0], [0.0, 4.0]]), 2.0)
    after = quantization.Answers(np.array([[3.0, 0.0], [4.0, 4.5]]), 1.0)
    comparison = quantization.compare(before, after, np.array([0, 0]))
    assert comparison.relative_error == pytest.approx(np.sqrt(16.25 / 25))
    assert (comparison.agreement, comparison.accuracy) == (1.0, (0.5, 0.5))
    assert "(2.00 times as fast" in comparison.summary()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "no array"),
        ({"image": np.zeros((4, 64)), "labels": np.zeros(3)}, "same number of rows"),
        ({"image": np.zeros((0, 64))}, "at least one"),
        ({"image": np.array([{}])}, "expected an .npz file"),
        ({"image": np.zeros((9, 64)), "mask": np.zeros(9)}, "the data has ['image', 'mask']"),
        ({"image": np.zeros((9, 63))}, "does not take the data"),
        ({"image": np.zeros((3, 64))}, "batches of 4, the data has 3"),
    ],
    ids=["empty", "lengths", "rows", "pickle", "names", "shape", "batch"],
)
def test_data_that_does_not_fit_is_refused(digits, tmp_path, arrays, text):
    data = tmp_path / "data.npz"
    np.savez(data, **arrays)
    with pytest.raises(InvalidInputs) as error:
        quantize(str(digits / "four.onnx"), str(tmp_path / "out.xml"), str(data))
    assert text in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_a_file_that_is_no_archive_is_refused(digits):
    with pytest.raises(InvalidInputs, match="expected an .npz file"):
        read_data(str(digits / "digits.onnx"))


def test_a_file_needs_data_to_be_quantised(digits, tmp_path, capsys):
    assert main(["quantize", str(digits / "digits.onnx"), str(tmp_path / "out.xml")]) == 2
    assert "--calibrate DATA.npz" in capsys.readouterr().err
