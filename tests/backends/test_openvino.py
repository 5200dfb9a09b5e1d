"""Files that OpenVINO reads, compared with numpy, OpenVINO and ONNX Runtime."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StageFailed, StartError

openvino = pytest.importorskip("openvino", reason="it writes and runs these models")
FOREIGN = Path(__file__).parent / "foreign"  # made by the scripts there
W = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
X = np.array([[1, 2, 3], [0.5, 0, -1], [2, 2, 2]], np.float32)
EXPECTED = np.maximum(X @ W - 10, 0)


def f32(*rows):
    return np.array(rows, np.float32)


def named(node, name):
    node.output(0).set_names({name})
    return node


@pytest.fixture(scope="module")
def ir(tmp_path_factory):
    """Directory of OpenVINO's own files."""
    from openvino import opset13 as ops

    directory = tmp_path_factory.mktemp("ir")

    def save(name, outputs, inputs, **options):
        model = openvino.Model(outputs, inputs, name)
        openvino.save_model(
            model, directory / f"{name}.xml", **{"compress_to_fp16": False} | options
        )

    def parameter(*shape, kind=np.float32):
        return named(ops.parameter(openvino.PartialShape(list(shape)), kind), "x")

    x = parameter(-1, 3)
    save(
        "plain",
        [named(ops.relu(ops.subtract(ops.matmul(x, W, False, False), f32(10.0))), "y")],
        [x],
    )
    x = parameter(-1, 3)
    low, high = f32(-4.0), f32(4.0)
    rounded = ops.fake_quantize(x, low, high, low, high, 256)
    weights = ops.multiply(ops.convert(ops.constant(W.astype(np.int8)), np.float32), f32(0.5))
    save("int8", [named(ops.matmul(rounded, weights, False, False), "y")], [x])
    x = parameter(2, 3, kind=np.int64)
    save("fixed", [named(ops.add(x, np.int64(1)), "y"), named(ops.negative(x), "z")], [x])
    x = parameter(-1, 2)
    state = ops.read_value(ops.broadcast(f32(0.0), ops.shape_of(x)), "sum")
    total = ops.add(x, state)
    result, sink = ops.result(named(total, "y")), ops.assign(total, "sum")
    model = openvino.Model([result], [sink], [x], "state")
    openvino.save_model(model, directory / "state.xml", compress_to_fp16=False)
    x = named(ops.parameter([-1], openvino.Type.bf16), "x")
    save("bfloat16", [named(ops.relu(x), "y")], [x])
    x = named(ops.parameter([-1], openvino.Type.i4), "x")
    save("int4", [named(ops.convert(x, np.float32), "y")], [x])
    x = parameter(-1, 3)
    known = ops.abs(ops.subtract(ops.constant(W[:, 0]), ops.constant(f32(4.0))))
    save("known", [named(ops.multiply(x, known), "y")], [x])
    x = parameter(openvino.Dimension(1, 2), 3)
    save("most2", [named(ops.negative(x), "y")], [x])
    return directory


def test_absolute_values_that_are_known_at_the_start_have_no_sign(ir, opened):
    (y,) = opened("openvino", ir / "known.xml").run([X])
    np.testing.assert_allclose(y, X * np.abs(W[:, 0] - 4), rtol=1e-6)


def test_batches_beyond_the_files_limit_are_several_runs(ir, opened):
    backend = opened("openvino", ir / "most2.xml")
    rows = [(row,) for row in X]
    outcomes = run_model(backend, DeclaredModel("m", "openvino", ("most2.xml",)), 0, rows)
    np.testing.assert_array_equal([result for (result,) in outcomes], -X)


def test_a_model_of_openvino_runs_with_any_batch(ir, opened):
    backend = opened("openvino", ir / "plain.xml")
    for count in (3, 1):
        np.testing.assert_allclose(backend.run([X[:count]])[0], EXPECTED[:count], rtol=1e-6)


def test_the_signature_has_the_names_types_and_shapes_of_the_file(ir, opened):
    (signature,) = opened("openvino", ir / "fixed.xml").signature
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.inputs] == [
        ("x", np.int64, (2, 3))
    ]
    assert [(spec.name, spec.shape) for spec in signature.outputs] == [("y", (2, 3)), ("z", (2, 3))]
    (signature,) = opened("openvino", ir / "plain.xml").signature
    assert [spec.shape for spec in signature.inputs + signature.outputs] == [(-1, 3), (-1, 2)]


def test_quantised_model_matches_rounded_arithmetic(ir, opened):
    (result,) = opened("openvino", ir / "int8.xml").run([X])
    step = 8 / 255
    rounded = np.round((np.clip(X, -4, 4) + 4) / step) * step - 4
    np.testing.assert_allclose(result, rounded @ (W * 0.5), atol=2 * step * np.abs(W).sum())
    direct = openvino.Core().compile_model(ir / "int8.xml", "CPU")
    np.testing.assert_allclose(result, direct([X])[0], rtol=1e-5)


def test_states_inside_a_model_are_its_last_inputs_and_outputs(ir, opened):
    backend = opened("openvino", ir / "state.xml")
    (signature,) = backend.signature
    assert [spec.name for spec in (*signature.inputs, *signature.outputs)] == [
        *("x", "sum"),
        *("y", "sum_next"),
    ]
    state = np.zeros((2, 2), np.float32)
    for number in range(1, 4):
        y, state = map(np.copy, backend.run([np.eye(2, dtype=np.float32), state]))
        np.testing.assert_array_equal(y, number * np.eye(2))
    assert backend.states == [("sum", "sum_next", bytes(8))]


def test_several_files_are_sub_graphs(ir, opened):
    backend = opened("openvino", ir / "plain.xml", ir / "fixed.xml")
    assert [len(signature.outputs) for signature in backend.signature] == [1, 2]
    ones = np.ones((2, 3), np.int64)
    np.testing.assert_array_equal(backend.run([ones], 1)[1], -ones)


@pytest.mark.parametrize(
    "file", ["saved", "saved/saved_model.pb", "frozen.pb", "net.tflite", "net.pdmodel"]
)
def test_files_of_tensorflow_and_paddle_run(opened, file):
    backend = opened("openvino", FOREIGN / file)
    np.testing.assert_allclose(backend.run([X])[0], EXPECTED, rtol=1e-6)
    (signature,) = backend.signature
    assert [spec.shape for spec in signature.inputs] == [(-1, 3)]
    assert signature.inputs[0].name in ("x", "serving_default_x")


@pytest.mark.onnx
def test_onnx_on_openvino_answers_as_onnx_runtime_does(onnx, opened):
    for name in ("open", "fixed"):
        ours = opened("onnx_openvino", onnx / f"{name}.onnx")
        other = opened("onnx", onnx / f"{name}.onnx")
        assert [spec.name for spec in ours.signature[0].outputs] == ["sum", "difference"]
        shapes = [
            [(spec.name, spec.dtype, spec.shape) for spec in backend.signature[0].inputs]
            for backend in (ours, other)
        ]
        assert shapes[0] == shapes[1]
        pair = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((3, 2), np.float32)]
        for one, two in zip(ours.run(pair), other.run(pair), strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_type_that_requests_cannot_carry_is_refused_by_name(ir, opened):
    with pytest.raises(StartError, match="input 0 'x' is of type i4, which requests cannot"):
        opened("openvino", ir / "int4.xml")


def test_bfloat16_inputs_and_outputs_are_float32(ir, opened):
    backend = opened("openvino", ir / "bfloat16.xml")
    (signature,) = backend.signature
    assert [spec.name for spec in (*signature.inputs, *signature.outputs)] == ["x", "y"]
    assert signature.inputs[0].dtype == signature.outputs[0].dtype == np.float32
    np.testing.assert_array_equal(backend.run([f32(-1, 2.5)])[0], f32(0, 2.5))


def test_another_device_than_a_cpu_is_refused(ir, opened):
    with pytest.raises(StartError, match="on device type cpu, not on gpu; export the model to"):
        opened("openvino", ir / "plain.xml", device_type="gpu")


def test_weights_that_are_missing_are_named(ir, opened, tmp_path):
    shutil.copy(ir / "plain.xml", tmp_path / "net.xml")
    with pytest.raises(StartError, match=r"its weights, '.*net.bin', do not exist"):
        opened("openvino", tmp_path / "net.xml")
    (tmp_path / "net.bin").write_bytes(b"short")
    with pytest.raises(StartError, match="Load model failed, model file: .*net.xml"):
        opened("openvino", tmp_path / "net.xml")


@pytest.mark.parametrize(
    "name", ["net.xml", "net.pb", "net.tflite", "net.pdmodel", "net.onnx", "saved_model.pb"]
)
@pytest.mark.parametrize("content", [b"what is this?", b"\x00\xff\x80" * 50, b"<net", b""])
def test_file_of_other_content_is_a_readable_error(opened, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "net.bin").write_bytes(b"")
    with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
        opened("openvino", tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.onnx
@pytest.mark.parametrize("location", ["../secret", "{outside}", "link"])
def test_weights_outside_of_the_directory_are_refused(opened, tmp_path, location):
    from onnx import TensorProto, helper

    outside, inside = tmp_path / "secret", tmp_path / "inside"
    outside.write_bytes(bytes(8))
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location.format(outside=outside))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (inside / "net.onnx").write_bytes(model.SerializeToString())
    for model_format in ("onnx_openvino", "onnx"):
        with pytest.raises(StartError, match=r"net.onnx.*([Oo]utside|escapes|Absolute path)"):
            opened(model_format, inside / "net.onnx")


@pytest.mark.parametrize("file", ["frozen.pb", "net.tflite", "net.pdmodel"])
def test_a_file_cut_anywhere_is_a_readable_error_or_a_smaller_model(opened, tmp_path, file):
    """Of a protobuf message that is cut at a field, what is left is a message too."""
    whole = (FOREIGN / file).read_bytes()
    shutil.copy(FOREIGN / "net.pdiparams", tmp_path / "net.pdiparams")
    for length in range(1, len(whole), len(whole) // 12):
        (tmp_path / file).write_bytes(whole[:length])
        said = ""
        try:
            opened("openvino", tmp_path / file)
        except StartError as error:
            said = str(error)
        assert said == "" or said.startswith("Load model failed, model file: ")
        assert "\n" not in said


def test_failed_run_gives_reason_and_model_keeps_working(ir, opened):
    backend = opened("openvino", ir / "plain.xml")
    with pytest.raises(StageFailed):
        backend.run([np.ones((2, 5), np.float32)])
    np.testing.assert_allclose(backend.run([X])[0], EXPECTED, rtol=1e-6)


def test_threads_and_precision_are_taken(ir, opened, tmp_path):
    config = tmp_path / "openvino.json"
    config.write_text('{"NUM_STREAMS": 1}')
    options = {"thread_num": 1}
    backend = opened("openvino", ir / "plain.xml", options=options, config_file=str(config))
    compiled = backend._models[0].request.get_compiled_model()
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
