"""`mindspore-serving convert` writes a MindIR or Lite file as OpenVINO IR."""

import re
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.cli import main

FILES = Path(__file__).parents[1] / "mindir" / "lite"

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore:getName\\(\\) is deprecated:DeprecationWarning"),
]


@pytest.fixture
def file(tmp_path):
    mindspore = pytest.importorskip("mindspore", reason="MindSpore exports the model")
    path = tmp_path / "dense.mindir"
    cell = mindspore.nn.Dense(3, 2, weight_init="ones", has_bias=False)
    example = mindspore.Tensor(shape=[None, 3], dtype=mindspore.float32)
    mindspore.export(cell, example, file_name=str(path), file_format="MINDIR")
    return path


def test_the_written_model_is_read_by_openvino_and_answers_the_same(file, tmp_path, capsys):
    import openvino

    assert main(["convert", str(file), str(tmp_path / "dense.xml")]) == 0
    assert "dense.bin" in capsys.readouterr().out
    compiled = openvino.Core().compile_model(str(tmp_path / "dense.xml"), "CPU")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = compiled({compiled.inputs[0].any_name: x})[0]
    np.testing.assert_allclose(result, np.repeat(x.sum(1, keepdims=True), 2, 1), rtol=1e-2)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("out.onnx", "expected a name that ends in .xml.* cannot write ONNX"),
        ("missing/out.xml", "there is no directory"),
        ("there.xml", "already exists"),
    ],
)
def test_a_target_that_cannot_be_made_is_refused(file, tmp_path, capsys, target, text):
    (tmp_path / "there.xml").write_text("")
    assert main(["convert", str(file), str(tmp_path / target)]) == (2 if "onnx" in target else 1)
    assert re.search(text, capsys.readouterr().err, re.S)


def test_a_file_that_is_no_mindir_is_refused(tmp_path, capsys):
    (tmp_path / "other.mindir").write_bytes(b"what is this?")
    assert main(["convert", str(tmp_path / "other.mindir"), str(tmp_path / "out.xml")]) == 1
    assert "not MindIR" in capsys.readouterr().err


def test_a_lite_file_is_written_as_openvino_ir(tmp_path):
    openvino = pytest.importorskip("openvino")
    source, target = FILES / "shapes.ms", tmp_path / "net.xml"
    assert main(["convert", str(source), str(target)]) == 0
    model = openvino.Core().compile_model(target, "CPU")
    (y,) = model([np.ones((2, 3, 4), np.float32)]).values()
    assert y.shape == (2, 4)
