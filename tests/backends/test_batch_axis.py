"""Models whose inputs disagree about the first dimension, such as those with a recurrent state."""

import numpy as np
import pytest

from mindspore_serving import log
from mindspore_serving.backends import batch_axis
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.formats import open_backend
from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StartError

pytestmark = pytest.mark.onnx
X = np.arange(12, dtype=np.float32).reshape(2, 6)
STATE = np.arange(16, dtype=np.float32).reshape(2, 2, 4)
AXES = {"state": 1, "next": 1, "rate": -1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model with the inputs of Silero VAD: x [N, T], state [2, N, 4] and a scalar.

    y = sum(x) * rate and next = state + sum(x), which an instance alone computes alike.
    """
    onnx = pytest.importorskip("onnx", reason="it writes the model")
    make, f4 = onnx.helper, onnx.TensorProto.FLOAT
    axis = make.make_tensor("axis", onnx.TensorProto.INT64, [1], [1])
    nodes = [
        make.make_node("ReduceSum", ["x", "axis"], ["sum"]),
        make.make_node("Mul", ["sum", "rate"], ["y"]),
        make.make_node("Add", ["state", "sum"], ["next"]),
    ]
    graph = make.make_graph(
        nodes,
        "recurrent",
        [
            make.make_tensor_value_info("x", f4, [None, None]),
            make.make_tensor_value_info("state", f4, [2, None, 4]),
            make.make_tensor_value_info("rate", f4, []),
        ],
        [
            make.make_tensor_value_info("y", f4, [None, 1]),
            make.make_tensor_value_info("next", f4, [None, None, None]),
        ],
        [axis],
    )
    path = tmp_path_factory.mktemp("recurrent") / "recurrent.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def settle(path, model_format="onnx", **fields):
    fields = {"with_batch_dim": None, **fields}
    spec = DeclaredModel("recurrent.onnx", model_format, ("recurrent.onnx",), **fields)
    return batch_axis.settle(spec, open_backend(ModelSource(spec, (path,))), can_probe=True)


@pytest.mark.parametrize("model_format", ["onnx", "onnx_openvino"])
def test_inputs_that_disagree_are_run_whole(path, model_format):
    if model_format == "onnx_openvino":
        pytest.importorskip("openvino")
    spec, model = settle(path, model_format)
    assert spec.with_batch_dim is False
    assert spec.no_batch_reason
    rate = np.float32(2)
    ((y, state),) = run_model(model, spec, 0, [(X, STATE, rate)])
    np.testing.assert_array_equal(y, [[30], [102]])
    np.testing.assert_array_equal(state, STATE + [[15], [51]])


def test_state_is_stacked_along_the_axis_that_is_set(path):
    spec, model = settle(path, batch_axis=AXES)
    assert [tensor.shape for tensor in model.signature[0].inputs] == [(-1, -1), (-1, 2, 4), None]
    rows = [(X[i], STATE[:, i], np.float32(2)) for i in range(2)]
    outcomes = run_model(model, spec, 0, rows)
    for i, (y, state) in enumerate(outcomes):
        np.testing.assert_array_equal(y, [30 + 72 * i])
        np.testing.assert_array_equal(state, STATE[:, i] + 15 + 36 * i)


def test_instances_of_other_values_without_batch_dimension_run_apart(path):
    spec, model = settle(path, batch_axis=AXES)
    rows = [(X[0], STATE[:, 0], np.float32(rate)) for rate in (1, 3)]
    assert [float(y[0]) for y, _ in run_model(model, spec, 0, rows)] == [15, 45]


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"stat": 1}, "has 'stat', known are x, state, rate, y, next; did you mean 'state'"),
        ({"state": 3}, r"is 3 for 'state', which has the shape \[2, -1, 4\]"),
        ({"y": -1}, "is -1 for the output 'y', expected 0 or more"),
    ],
)
def test_axes_that_do_not_fit_the_model_are_refused(path, axes, text):
    with pytest.raises(StartError, match=text):
        settle(path, batch_axis=axes)


def test_axes_contradict_a_model_without_batch_dimension(path):
    with pytest.raises(StartError, match="has a batch_axis, but with_batch_dim=False"):
        settle(path, batch_axis=AXES, with_batch_dim=False)


def test_batch_dimension_of_a_declaration_is_kept_with_a_warning(path, monkeypatch):
    warnings = []
    monkeypatch.setattr(log, "warning", lambda text, *args: warnings.append(text % args))
    spec, _ = settle(path, with_batch_dim=True)
    assert spec.with_batch_dim is True
    (text,) = warnings
    assert "with_batch_dim=True, but the first dimension of input 'x' is any size" in text


def test_axis_beyond_the_rank_of_unknown_shapes_fails_the_request(path):
    spec, model = settle(path, batch_axis={**AXES, "rate": 5})
    ((outcome),) = run_model(model, spec, 0, [(X[0], STATE[:, 0], np.float32(1))])
    assert "batch_axis does not fit the shapes of the model" in str(outcome)


def write_mindir(directory):
    ms = pytest.importorskip("mindspore", reason="it writes the model")

    class Recurrent(ms.nn.Cell):
        def construct(self, x, state):
            total = x.sum(1, keepdims=True)
            return total, state + total

    shapes = [None, 6], [2, None, 4]
    inputs = [ms.Tensor(shape=shape, dtype=ms.float32) for shape in shapes]
    ms.export(Recurrent(), *inputs, file_name=str(directory / "net"), file_format="MINDIR")
    return directory / "net.mindir"


def write_torch(directory):
    torch = pytest.importorskip("torch", reason="it writes the model")

    class Recurrent(torch.nn.Module):
        def forward(self, x, state):
            total = x.sum(1, keepdim=True)
            return total, state + total

    batch = torch.export.Dim("batch")
    shapes = {"x": {0: batch}, "state": {1: batch}}
    inputs = torch.zeros(3, 6), torch.zeros(2, 3, 4)
    program = torch.export.export(Recurrent(), inputs, dynamic_shapes=shapes)
    torch.export.save(program, directory / "net.pt2")
    return directory / "net.pt2"


@pytest.mark.parametrize(
    ("model_format", "write"),
    [
        pytest.param("mindir", write_mindir, marks=pytest.mark.mindspore),
        pytest.param("mindir_openvino", write_mindir, marks=pytest.mark.mindspore),
        pytest.param("pytorch", write_torch, marks=pytest.mark.torch),
    ],
)
def test_other_formats_are_decided_alike(tmp_path, model_format, write):
    if model_format == "mindir_openvino":
        pytest.importorskip("openvino")
    path = str(write(tmp_path))
    spec, model = settle(path, model_format)
    assert spec.with_batch_dim is False
    ((total, state),) = run_model(model, spec, 0, [(X, STATE)])
    np.testing.assert_array_equal(total, [[15], [51]])
    np.testing.assert_array_equal(state, STATE + total)
    spec, model = settle(path, model_format, batch_axis={"state": 1, "output1": 1})
    outcomes = run_model(model, spec, 0, [(X[i], STATE[:, i]) for i in range(2)])
    for i, (total, state) in enumerate(outcomes):
        np.testing.assert_array_equal(total, [15 + 36 * i])
        np.testing.assert_array_equal(state, STATE[:, i] + total)
