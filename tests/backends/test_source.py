import numpy as np
import pytest

from mindspore_serving import log
from mindspore_serving.backends import mindir_lite
from mindspore_serving.backends import source as source_module
from mindspore_serving.backends.source import SourceOptions, error_text, warm_up
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.servable import context


@pytest.fixture
def warnings_logged(monkeypatch):
    messages = []
    monkeypatch.setattr(source_module, "_reported", set())
    monkeypatch.setattr(log, "warning", lambda text, *args: messages.append(text % args))
    return messages


def signature(shape, *outputs):
    return Signature((TensorSpec("x", np.dtype("f4"), shape),), outputs)


def refuse(arrays):
    raise StageFailed("too small")


def test_the_key_of_a_model_is_not_shown(source):
    assert "secret" not in repr(source("mindir", "a.mindir", dec_key=b"secret"))


def test_error_text_drops_stack_dump_and_is_shortened():
    text = "first line\nsecond\n\n----------\n- C++ Call Stack\nfile.cc:1"
    assert error_text(RuntimeError(text)) == "first line second"
    assert error_text(KeyError()) == "KeyError"
    ruler = "-" * 52
    text = (
        f"\n{ruler}\n- Kernel select failed:\n{ruler}\nUnsupported op\n\n{ruler}\n- C++ Call Stack"
    )
    assert error_text(text) == "Unsupported op"
    assert len(error_text("x" * 10_000)) == 601


def test_dynamic_dimensions_are_warmed_up_with_size_1(source):
    shapes = []

    def run(arrays):
        shapes.extend(array.shape for array in arrays)
        return [arrays[0]]

    known = warm_up(run, signature((-1, 3, -1)), source("mindir", "a"), "a")
    assert shapes == [(1, 3, 1)]
    assert known.outputs == (TensorSpec("output0", np.dtype("f4"), None),)


def test_outputs_missing_in_the_signature_come_from_the_run(source):
    given = signature((2, 3))
    results = [np.zeros((2, 5), np.int32), np.zeros(2, np.float16)]
    known = warm_up(lambda arrays: results, given, source("mindir", "a"), "a")
    assert known.outputs == (
        TensorSpec("output0", np.dtype("i4"), (2, 5)),
        TensorSpec("output1", np.dtype("f2"), (2,)),
    )


def test_a_fixed_model_that_does_not_run_does_not_load(source):
    with pytest.raises(StartError, match="'a.x'.*does not run on zeros: too small"):
        warm_up(refuse, signature((2, 3)), source("mindir", "a.x"), "a.x")


def test_an_open_model_may_refuse_the_smallest_shapes(source, warnings_logged):
    given = signature((-1, -1), TensorSpec("y", None, None))
    assert warm_up(refuse, given, source("mindir", "a"), "a") == given
    assert warnings_logged == ["Model file 'a' is not warmed up, shapes [(1, 1)]: too small"]


def test_larger_sizes_are_tried_for_open_dimensions_but_the_first(source):
    tried = []

    def run(arrays):
        tried.append(arrays[0].shape)
        if arrays[0].shape[-1] < 200:
            raise StageFailed("too small")
        return [arrays[0]]

    known = warm_up(run, signature((-1, 3, -1)), source("onnx", "a"), "a")
    assert tried == [(1, 3, 1), (1, 3, 32), (1, 3, 256)]
    assert known.inputs[0].trial == (1, 3, 256)
    assert known.inputs[0].shape == (-1, 3, -1)


def test_sizes_that_take_much_memory_are_not_tried(source, warnings_logged):
    tried = []

    def run(arrays):
        tried.append(arrays[0].size)
        raise StageFailed("too small")

    warm_up(run, signature((-1,) * 6), source("onnx", "a"), "a")
    assert max(tried) == 256
    assert len(tried) == 11


def test_options_of_the_chosen_device_count_and_the_sources_own_win(source, warnings_logged):
    devices = [
        {"device_type": "cpu", "precision_mode": "fp16"},
        {"device_type": "gpu", "precision_mode": "origin"},
    ]
    options = SourceOptions(source("onnx", "a", options={"thread_num": 1, "device_list": devices}))
    assert options.take("thread_num") == 1
    assert options.take("precision_mode") == "fp16"
    options.report_ignored()
    assert warnings_logged == []


def test_an_ignored_option_is_logged_once_and_a_default_never(source, warnings_logged):
    asked = {"enable_parallel": False, "precision_mode": "origin", "input_format": "NCHW"}
    for _ in range(2):
        SourceOptions(source("onnx", "a", options=asked)).report_ignored()
    assert warnings_logged == [
        "Option input_format='NCHW' is ignored: model format 'onnx' has no such setting on this "
        "device"
    ]


def test_every_precision_mode_of_ascend_is_translated_for_mindspore_lite() -> None:
    """AscendDeviceInfo has the names of ACL, which MindSpore Lite refuses."""
    assert set(mindir_lite._ASCEND_PRECISION) == set(context._ASCEND["precision_mode"])
    names = {"enforce_fp16", "preferred_fp32", "enforce_origin", "preferred_optimal"}
    assert set(mindir_lite._ASCEND_PRECISION.values()) == names
