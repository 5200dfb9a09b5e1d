"""MindIR files on OpenVINO.  Operators and networks are compared with MindSpore in tests/mindir."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mindspore_serving.backends import formats
from mindspore_serving.errors import StageFailed, StartError
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore:getName\\(\\) is deprecated:DeprecationWarning"),
]
FORMAT = "mindir_openvino"
KEY16, KEY32 = b"0123456789abcdef", b"0123456789abcdef0123456789abcdef"


def f32(*rows):
    return np.array(rows, np.float32)


@pytest.fixture
def messages():
    """MindSpore's own description of a file, to make changed files of it."""
    from mindspore.train import mind_ir_pb2

    return mind_ir_pb2


@pytest.fixture
def changed(messages, mindir, tmp_path):
    """A function that writes a changed copy of a file: `change` gets the message."""

    def make(name, change):
        model = messages.ModelProto()
        model.ParseFromString((mindir / f"{name}.mindir").read_bytes())
        change(model)
        path = tmp_path / f"{name}.mindir"
        path.write_bytes(model.SerializeToString())
        return path

    return make


def test_the_signature_is_that_of_the_file(mindir, opened):
    for name in ("add", "two_open", "nested"):
        ours = opened(FORMAT, mindir / f"{name}.mindir").signature
        assert ours == opened("mindir", mindir / f"{name}.mindir").signature


def test_a_model_of_open_shapes_runs_with_many_shapes(mindir, opened):
    backend = opened(FORMAT, mindir / "two_open.mindir")
    for shape in ((1, 1), (2, 3), (7, 2), (0, 4)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        total, difference = backend.run([x, x + 1])
        np.testing.assert_array_equal(total, 2 * x + 1)
        np.testing.assert_array_equal(difference, -np.ones(shape, np.float32))


@pytest.mark.parametrize(("name", "key"), [("gcm", KEY16), ("cbc", KEY32)])
def test_an_encrypted_model_runs_with_its_key(mindir, opened, name, key):
    path = mindir / f"add_{name}.mindir"
    backend = opened(FORMAT, path, dec_key=key, dec_mode=f"AES-{name.upper()}")
    ones = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(backend.run([ones, ones])[0], 2 * ones)
    with pytest.raises(StartError, match="the file is encrypted, pass its key as dec_key"):
        opened(FORMAT, path)


def test_weights_beside_the_file_are_read(mindir, opened, changed, tmp_path):
    """MindSpore writes a model over 1 GB so."""
    (tmp_path / "net_variables").mkdir()

    def move_weights(model):
        content = bytes(64)
        for parameter in model.graph.parameter:
            place = parameter.external_data
            place.location, place.offset = "net_variables/data_0", len(content)
            place.length = len(parameter.raw_data)
            content += parameter.raw_data
            parameter.ClearField("raw_data")
        (tmp_path / "net_variables" / "data_0").write_bytes(content)

    path = changed("convolve", move_weights)
    image = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    (expected,) = opened(FORMAT, mindir / "convolve.mindir").run([image])
    np.testing.assert_array_equal(opened(FORMAT, path).run([image])[0], expected)
    (tmp_path / "net_variables" / "data_0").write_bytes(b"short")
    with pytest.raises(StartError, match="weight '.*' is bytes 64 to 136 of .* which has 5"):
        opened(FORMAT, path)


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "link"])
def test_weights_outside_of_the_directory_are_refused(opened, changed, tmp_path, location):
    os.symlink("/etc/passwd", tmp_path / "link")

    def point_outside(model):
        model.graph.parameter[0].external_data.location = location

    with pytest.raises(StartError, match="outside of its directory"):
        opened(FORMAT, changed("convolve", point_outside))


def test_missing_operators_are_named_with_their_locations(opened, changed):
    def rename(model):
        for primitive in model.primitives:
            primitive.op_type = f"My{primitive.op_type}"

    pattern = "MyAdd at Default/Add-op0; .*MySub at Default/Sub-op0.*pip install 'mindspore-serving"
    with pytest.raises(StartError, match=pattern) as caught:
        opened(FORMAT, changed("two_open", rename))
    assert "\n" not in str(caught.value)


def test_an_argument_that_an_operator_is_not_converted_with_is_named(opened, changed):
    def other_layout(model):
        (primitive,) = (one for one in model.primitives if one.op_type == "Conv2D")
        (entry,) = (one for one in primitive.attribute if one.name == "format")
        entry.Clear()
        entry.name, entry.type, entry.s = "format", 8, b"NHWC"

    with pytest.raises(StartError, match="Conv2D at .*layer-Conv2d/Conv2D-op0.*'NHWC'"):
        opened(FORMAT, changed("convolve", other_layout))


def turn_weights(model):
    model.graph.parameter[0].dims[0] = 3


def enlarge_input(model):
    model.graph.input[0].tensor[0].dims[0] = 1 << 31


def empty_input(model):
    model.graph.input[0].tensor[0].dims[0] = 0


def step_by_nothing(model):
    slicing = next(node for node in model.graph.node if "StridedSlice" in node.op_type)
    strides = next(node for node in model.graph.node if node.output[0] == slicing.input[3])
    for value in strides.attribute[0].values:
        value.ints[0] = 0


def make_cycle(model):
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    nodes[0].input[0] = nodes[0].output[0]


def call_itself(model):
    node = next(node for node in model.graph.node if node.op_type != "Constant")
    node.op_type, after = f"REF::{model.graph.name}", node
    model.graph.node.remove(after)
    model.graph.node.insert(0, node)
    del node.input[:]
    node.input.extend(entry.name for entry in model.graph.input)


def double_calls(model):
    """Forty graphs, each of which calls the next one twice."""
    for number in range(40):
        graph = model.functions.add(name=f"g{number}")
        graph.input.add(name=f"x{number}")
        kind = "ReLU" if number == 39 else f"REF::g{number + 1}"
        for side, given in (("a", f"x{number}"), ("b", f"a{number}"), ("c", f"b{number}")):
            node = graph.node.add(name=side, op_type=kind if side != "c" else "ReLU")
            node.input.append(given)
            node.output.append(f"{side}{number}")
        graph.output.add(name=f"c{number}")
    node = model.graph.node.add(name="first", op_type="REF::g0")
    node.input.append(model.graph.input[0].name)
    node.output.append("result")
    model.graph.output[0].name = "result"


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("convolve", turn_weights, "has 72 bytes"),
        ("add", enlarge_input, "of shape \\(2147483648, 2\\) has 17179869184 bytes, accepted"),
        ("add", empty_input, "of shape \\(0, 2\\) has no elements"),
        ("sliced", step_by_nothing, "StridedSlice at .*: strides \\[0, 0\\]"),
        ("add", make_cycle, "not defined before it: a missing name, or a cycle"),
        ("two_open", call_itself, "calls itself"),
        ("two_open", double_calls, "make more than 200000 calls"),
    ],
)
def test_invalid_files_are_readable_errors(opened, changed, name, change, text):
    with pytest.raises(StartError, match=f"(?s){name}.mindir.*{text}") as caught:
        opened(FORMAT, changed(name, change))
    assert "\n" not in str(caught.value)


def test_file_truncated_anywhere_is_a_readable_error(mindir, opened, tmp_path):
    whole = (mindir / "convolve.mindir").read_bytes()
    path = tmp_path / "cut.mindir"
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
            opened(FORMAT, path)
        assert "\n" not in str(caught.value)


def test_failed_run_gives_reason_and_model_keeps_working(mindir, opened):
    backend = opened(FORMAT, mindir / "add.mindir")
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(StageFailed):
        backend.run([np.ones((3, 5), np.float32), ones])
    np.testing.assert_array_equal(backend.run([ones, ones])[0], 2 * ones)


def test_another_device_than_a_cpu_is_refused(mindir, opened):
    with pytest.raises(StartError, match="on device type cpu, not on gpu; install MindSpore"):
        opened(FORMAT, mindir / "add.mindir", device_type="gpu")


def precision_of(backend):
    compiled = backend._models[0].request.get_compiled_model()
    return compiled.get_property("INFERENCE_PRECISION_HINT").to_string()


def test_float32_is_the_default_precision(mindir, opened, tmp_path):
    path = mindir / "convolve.mindir"
    options = {"device_list": [{"device_type": "cpu", "precision_mode": "fp16"}]}
    config = tmp_path / "openvino.json"
    config.write_text('{"INFERENCE_PRECISION_HINT": "bf16"}')
    assert precision_of(opened(FORMAT, path)) == "f32"
    # By what the processor has; it is logged where that is less.
    assert precision_of(opened(FORMAT, path, options=options)) in ("f16", "bf16", "f32")
    assert precision_of(opened(FORMAT, path, config_file=str(config))) in ("bf16", "f32")


@pytest.mark.parametrize(
    ("text", "why"),
    [("[1]", "no JSON object"), ("{", "no JSON: "), ('{"NO_SUCH": 1}', "NO_SUCH")],
)
def test_invalid_config_file_is_an_error(mindir, opened, tmp_path, text, why):
    config = tmp_path / "openvino.json"
    config.write_text(text)
    with pytest.raises(StartError, match=why):
        opened(FORMAT, mindir / "add.mindir", config_file=str(config))


def test_the_number_of_threads_is_set(mindir, opened):
    backend = opened(FORMAT, mindir / "add.mindir", options={"thread_num": 1})
    compiled = backend._models[0].request.get_compiled_model()
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1


def test_mindspore_is_not_imported(mindir, tmp_path):
    shutil.copy(mindir / "convolve.mindir", tmp_path / "model.mindir")
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from mindspore_serving.backends import ModelSource, open_backend\n"
        "from mindspore_serving.core.declaration import DeclaredModel\n"
        "spec = DeclaredModel('k', 'mindir_openvino')\n"
        "backend = open_backend(ModelSource(spec, (sys.argv[1],)))\n"
        "print(backend.run([np.ones((1, 1, 5, 5), np.float32)])[0].sum())\n"
        "print('mindspore' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.mindir")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["162.0", "False"]


def test_onednn_limit_of_mindspore_does_not_affect_openvino(mindir):
    code = (
        "import os, sys\n"
        "import numpy as np\n"
        "from mindspore_serving.backends import ModelSource, open_backend\n"
        "from mindspore_serving.core.declaration import DeclaredModel\n"
        "source = ModelSource(DeclaredModel('k', 'mindir_openvino'), (sys.argv[1],))\n"
        "result = open_backend(source).run([np.eye(4, 6, dtype=np.float32)])[0]\n"
        "print(result.shape, os.environ['ONEDNN_MAX_CPU_ISA'])\n"
    )
    command = [sys.executable, "-c", code, str(mindir / "normal.mindir")]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment
    )
    assert done.stdout.split() == ["(4,", "6)", "AVX2"]


def test_model_runs_on_the_installed_or_requested_backend(monkeypatch):
    found = {"mindspore", "openvino", "onnxruntime"}
    monkeypatch.setattr(formats, "_folder", lambda name: name if name in found else None)
    assert formats.resolve("mindir") == "mindir"
    assert formats.resolve("mindir", "openvino") == FORMAT
    assert formats.resolve("onnx") == "onnx"
    assert formats.resolve("onnx", "openvino") == "onnx_openvino"
    assert formats.resolve("pytorch") == "pytorch"
    found -= {"mindspore", "onnxruntime"}
    assert formats.resolve("onnx") == "onnx_openvino"
    assert formats.resolve("mindir") == FORMAT
    assert formats.resolve("mindir", "mindspore") == "mindir"
    found.clear()
    assert formats.resolve("mindir") == "mindir"  # whose error says what to install


def test_an_empty_batch_for_an_lstm_fails_alone(opened, tmp_path):
    import mindspore as ms

    cell = ms.nn.LSTM(4, 3, batch_first=True).set_train(False)
    example = ms.Tensor(shape=[None, 5, 4], dtype=ms.float32)
    ms.export(cell, example, file_name=str(tmp_path / "lstm"), file_format="MINDIR")
    backend = opened(FORMAT, tmp_path / "lstm.mindir")
    with pytest.raises(StageFailed, match="an input has no elements"):
        backend.run([np.zeros((0, 5, 4), np.float32)])
    assert backend.run([np.ones((2, 5, 4), np.float32)])[0].shape == (2, 5, 3)
