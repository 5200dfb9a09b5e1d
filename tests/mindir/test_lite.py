"""MindSpore Lite files that its own converter made, equal to ONNX Runtime with their sources."""

import random
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.backends import open_backend
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite.convert import convert
from mindspore_serving.mindir.lite.graph import read_graph
from mindspore_serving.servable.model_files import recognize
from tests.mindir.lite import make_lite

pytestmark = pytest.mark.onnx
FILES = Path(__file__).parent / "lite"
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


def opened(path):
    spec = DeclaredModel(path.name, "mindir_lite_openvino", (path.name,))
    return open_backend(ModelSource(spec, (str(path),)))


def to_last(array):
    """Return images with the channels at the end, as MindSpore Lite has them."""
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


@pytest.mark.parametrize("name", ["image", "text", "mathematics", "upsample", "choices", "shapes"])
def test_a_lite_model_is_equal_to_its_source(tmp_path, name):
    path = tmp_path / "source.onnx"
    getattr(make_lite, name)(path)
    session = ort.InferenceSession(path)
    (source,) = session.get_inputs()
    shape = [dim if isinstance(dim, int) else 3 for dim in source.shape]
    x = np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
    (expected,) = session.run(None, {source.name: x})
    backend = opened(FILES / f"{name}.ms")
    (y,) = backend.run([np.ascontiguousarray(to_last(x))])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_a_lite_model_has_the_names_and_shapes_of_its_file():
    (signature,) = opened(FILES / "image.ms").signature
    (x,), (y,) = signature.inputs, signature.outputs
    assert (x.name, x.dtype, x.shape) == ("x", np.float32, (-1, 8, 8, 3))
    assert (y.name, y.shape) == ("y", (-1, 5))


def test_a_lite_file_is_recognized():
    file = recognize(str(FILES / "image.ms"))
    assert file is not None
    assert (file.format, file.why_not) == ("mindir_lite", "")


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(StartError) as caught:
        opened(path)
    return str(caught.value)


def test_the_errors_of_other_files_say_how_to_serve_them(tmp_path):
    content = bytearray((FILES / "shapes.ms").read_bytes())
    path = tmp_path / "net.ms"
    assert "a .mindir file is declared as MindIR" in refused(path, b"0000MODL" + bytes(64))
    content[4:8] = b"MSL1"
    text = refused(path, bytes(content))
    assert "of MindSpore Lite 1.0 or older: convert its source anew" in text
    assert "install MindSpore Lite from its download page" in text


def test_an_operator_without_a_row_is_named(monkeypatch):
    from mindspore_serving.mindir.lite import convert as module

    monkeypatch.setattr(module, "ROWS", {n: row for n, row in module.ROWS.items() if n != 130})
    with pytest.raises(StartError, match="numbers of the schema: 130 at Default/Shape-op1"):
        opened(FILES / "shapes.ms")


def test_a_damaged_file_is_refused_or_is_a_graph():
    content = (FILES / "image.ms").read_bytes()
    chosen = random.Random(7)
    variants = [content[:size] for size in range(0, len(content), 61)]
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(chosen.randint(1, 4)):
            changed[chosen.randrange(8, len(content))] = chosen.randrange(256)
        variants.append(bytes(changed))
    num_refused = 0
    for variant in variants:
        try:
            convert(read_graph(memoryview(variant)))
        except StartError:
            num_refused += 1
    assert num_refused > len(variants) // 4
