import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mindspore_serving import log
from mindspore_serving.backends import mindir_lite, onnx
from mindspore_serving.backends import source as source_module
from mindspore_serving.backends.source import SourceOptions, error_text, warm_up
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.servable import context
from mindspore_serving.servable.context import AscendDeviceInfo


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


def test_options_that_are_all_for_another_device_are_logged(source, warnings_logged) -> None:
    devices = [{"device_type": "ascend", "precision_mode": "force_fp16"}]
    for _ in range(2):
        SourceOptions(source("onnx", "a", options={"device_list": devices})).report_ignored()
    assert warnings_logged == ["Options for ascend devices have no effect: the model runs on cpu"]


class RecordingLite:
    """The part of MindSpore Lite's interface that loading uses; keeps what it is called with."""

    def __init__(self) -> None:
        self.ModelType = SimpleNamespace(MINDIR="mindir", MINDIR_LITE="ms")
        self.context = SimpleNamespace(ascend=SimpleNamespace())
        self.built: dict[str, Any] = {}

    def Context(self) -> Any:
        return self.context

    def Model(self) -> Any:
        return SimpleNamespace(
            build_from_file=lambda *args, **more: self.built.update(more, args=args),
            get_inputs=list,
            get_outputs=list,
        )


def load_with_lite(source, path, monkeypatch, **options) -> RecordingLite:
    lite = RecordingLite()
    monkeypatch.setitem(sys.modules, "mindspore_lite", lite)
    path.write_bytes(b"\0\0\0\0MSL2")
    devices = [AscendDeviceInfo(**options).context_map]
    mindir_lite.MindirLiteBackend.load(
        source(
            "mindir_lite", path, device_type="ascend", device_id=3, options={"device_list": devices}
        )
    )
    return lite


def test_mindspore_lite_gets_the_settings_of_acl_by_its_own_names(
    source, tmp_path, monkeypatch, warnings_logged
) -> None:
    file = str(tmp_path / "net.ms")  # any file that exists
    lite = load_with_lite(
        source,
        tmp_path / "net.ms",
        monkeypatch,
        precision_mode="allow_mix_precision",
        input_format="NHWC",
        input_shape="x: 1,2; y:3",
        output_type="FP16",
        op_select_impl_mode="high_precision",
        buffer_optimize_mode="off_optimize",
        insert_op_cfg_path=file,
        fusion_switch_config_path=file,
        matmul_allow_hf32=True,
    )
    assert vars(lite.context.ascend) == {"device_id": 3, "precision_mode": "preferred_optimal"}
    assert lite.built["args"][:2] == (file, "ms")
    assert lite.built["config_dict"] == {
        "ascend_context": {
            "input_format": "NHWC",
            "input_shape": "x:[1,2];y:[3]",
            "output_type": "FP16",
            "op_select_impl_mode": "high_precision",
            "buffer_optimize": "off_optimize",
            "insert_op_config_file_path": file,
            "fusion_switch_config_file_path": file,
        }
    }
    (ignored,) = warnings_logged
    assert ignored.startswith("Option matmul_allow_hf32='true' is ignored")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision_mode": "allow_fp32_to_bf16"}, "Lite does not have; it has force_fp16, allow_"),
        (
            {"insert_op_cfg_path": "no/aipp.cfg"},
            "insert_op_cfg_path is 'no/aipp.cfg', which is no ",
        ),
    ],
)
def test_settings_that_mindspore_lite_cannot_take_are_refused(
    source, tmp_path, monkeypatch, options, text
) -> None:
    with pytest.raises(StartError, match=text):
        load_with_lite(source, tmp_path / "net.ms", monkeypatch, **options)


def test_precision_modes_of_ascend_have_names_of_mindspore_lite() -> None:
    """AscendDeviceInfo has the names of ACL, which MindSpore Lite refuses."""
    missing = set(context._ASCEND["precision_mode"]) - set(mindir_lite._ASCEND_PRECISION)
    assert all(name.endswith(("_fp16", "_bf16")) for name in missing)
    names = {"fp16", "fp32", "origin"}
    assert {f"enforce_{name}" for name in names} | {"preferred_fp32", "preferred_optimal"} == set(
        mindir_lite._ASCEND_PRECISION.values()
    )


def test_cann_gets_the_precision_and_the_implementation_of_operators(source) -> None:
    device = {"precision_mode": "force_fp32", "op_select_impl_mode": "high_precision"}
    devices = [AscendDeviceInfo(**device, output_type="FP16").context_map]
    ascend = source(
        "onnx", "a", device_type="ascend", device_id=2, options={"device_list": devices}
    )
    first, second = onnx._providers(ascend, SourceOptions(ascend))
    assert first == ("CANNExecutionProvider", {"device_id": 2, **device})
    assert second == "CPUExecutionProvider"
