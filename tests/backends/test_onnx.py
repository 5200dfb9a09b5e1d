import numpy as np
import pytest

from mindspore_serving.backends.onnx import OnnxBackend
from mindspore_serving.errors import StageFailed, StartError

pytestmark = pytest.mark.onnx


def test_an_open_model_runs_with_any_batch(onnx, opened):
    backend = opened("onnx", onnx / "open.onnx")
    for count in (1, 5):
        x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        total, difference = backend.run([x, 2 * x])
        np.testing.assert_array_equal(total, 3 * x)
        np.testing.assert_array_equal(difference, -x)


def test_signature_has_file_names_and_dynamic_dimensions(onnx, opened):
    (signature,) = opened("onnx", onnx / "open.onnx").signature
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.inputs] == [
        ("x", np.float32, (-1, 2)),
        ("y", np.float32, (-1, 2)),
    ]
    assert [spec.name for spec in signature.outputs] == ["sum", "difference"]


def test_a_fixed_batch_is_in_the_signature(onnx, opened):
    (signature,) = opened("onnx", onnx / "fixed.onnx").signature
    assert [spec.shape for spec in signature.inputs + signature.outputs] == [(3, 2)] * 4


def test_float16_is_accepted(onnx, opened):
    backend = opened("onnx", onnx / "half.onnx")
    assert backend.signature[0].inputs[0].dtype == np.float16
    (result,) = backend.run([np.array([[0.5, 2.0]], np.float16)])
    np.testing.assert_array_equal(result, np.array([[0.5, 2.0]], np.float32))


def test_several_files_are_sub_graphs(onnx, opened):
    backend = opened("onnx", onnx / "open.onnx", onnx / "half.onnx")
    assert [len(signature.inputs) for signature in backend.signature] == [2, 1]
    assert backend.run([np.ones((1, 2), np.float16)], 1)[0].dtype == np.float32


def test_a_shape_shown_as_empty_counts_as_unknown(onnx, opened):
    (signature,) = opened("onnx", onnx / "unbatched.onnx").signature
    assert signature.outputs[0].shape is None


def test_texts_go_in_and_out(onnx, opened):
    backend = opened("onnx", onnx / "text.onnx")
    (result,) = backend.run([np.array(["a", "über"], object)])
    assert result.tolist() == ["a", "über"]


def test_missing_truncated_and_garbage_files_are_errors(onnx, opened, tmp_path):
    whole = (onnx / "open.onnx").read_bytes()
    for name, content in {"garbage": b"what is this?", "cut": whole[:60]}.items():
        (tmp_path / f"{name}.onnx").write_bytes(content)
    for name in ("missing", "garbage", "cut"):
        with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
            opened("onnx", tmp_path / f"{name}.onnx")
        assert f"{name}.onnx" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_absent_provider_is_an_error_and_not_a_fallback(onnx, opened):
    if "gpu" in OnnxBackend.device_types():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(
        StartError, match="has no CUDAExecutionProvider for device type gpu, it has"
    ):
        opened("onnx", onnx / "open.onnx", device_type="gpu")


def test_failed_run_gives_the_reason(onnx, opened):
    backend = opened("onnx", onnx / "open.onnx")
    with pytest.raises(StageFailed, match="Got: 3 Expected: 2"):
        backend.run([np.ones((1, 3), np.float32)] * 2)


def test_the_number_of_threads_is_taken(onnx, opened, source):
    from mindspore_serving.backends.onnx import _session_options
    from mindspore_serving.backends.source import SourceOptions

    options = {"thread_num": 1, "enable_parallel": 1}
    settings = _session_options(SourceOptions(source("onnx", onnx / "open.onnx", options=options)))
    assert settings.intra_op_num_threads == 1
    assert settings.execution_mode.name == "ORT_PARALLEL"
