import pytest

from mindspore_serving.servable import check
from mindspore_serving.servable.context import (
    AclOptions,
    AscendDeviceInfo,
    Context,
    CPUDeviceInfo,
    GPUDeviceInfo,
    GpuOptions,
)

ASCEND = {
    "insert_op_cfg_path": "aipp.cfg",
    "input_format": "NHWC1C0",
    "input_shape": "x: 1,2",
    "output_type": "FP16",
    "precision_mode": "allow_mix_precision",
    "op_select_impl_mode": "high_precision",
    "fusion_switch_config_path": "fusion.cfg",
    "buffer_optimize_mode": "l1_and_l2_optimize",
    "op_precision_mode": "precision.ini",
    "matmul_allow_hf32": "true",
    "conv_allow_hf32": "false",
    "op_compile": "true",
    "aoe_tune_mode": "offline",
    "aoe_job_type": "1",
}


def test_a_context_holds_its_arguments():
    context = Context(thread_num=3, thread_affinity_core_list=[1, 2], enable_parallel=True)
    held = context.model_context
    assert held.thread_num == 3
    assert list(held.thread_affinity_core_list) == [1, 2]
    assert held.enable_parallel == 1
    assert held.device_list == []


def test_a_context_tells_not_set_from_false():
    assert Context().model_context.enable_parallel == -1
    assert Context(enable_parallel=False).model_context.enable_parallel == 0


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"thread_num": 0}, "Parameter 'thread_num' should be >= 1"),
        ({"thread_num": "1"}, "Parameter 'thread_num' should be int"),
        (
            {"thread_affinity_core_list": 1},
            "Parameter 'thread_affinity_core_list' should be tuple/list of int, but actually",
        ),
        (
            {"thread_affinity_core_list": (1, 1)},
            "The item value '1' in parameter 'thread_affinity_core_list' should not be repeated",
        ),
        ({"thread_affinity_core_list": [-1]}, "should be >= 0"),
        ({"enable_parallel": 1}, "Parameter 'enable_parallel' should be bool"),
        ({"threads": 1}, "Set context failed, unsupported option threads, accepted: thread_num"),
    ],
)
def test_a_context_refuses(kwargs, text):
    with pytest.raises(RuntimeError, match=text.replace("(", r"\(")):
        Context(**kwargs)


@pytest.mark.parametrize(("kind", "device"), [("cpu", CPUDeviceInfo), ("gpu", GPUDeviceInfo)])
def test_cpu_and_gpu_have_a_precision(kind, device):
    assert device().context_map == {"device_type": kind}
    given = device(precision_mode="fp16").context_map
    assert given == {"device_type": kind, "precision_mode": "fp16"}
    with pytest.raises(RuntimeError) as caught:
        device(precision_mode="fp8")
    assert str(caught.value) == (
        f"{kind.capitalize()} device info 'precision_mode' can only be 'origin', 'fp16'. "
        "given 'fp8'"
    )
    with pytest.raises(RuntimeError) as caught:
        device(precision="fp16")
    assert f"Set {kind} device info failed, unsupported option precision" in str(caught.value)


def test_switches_of_ascend_are_texts_or_bools():
    switches = {"matmul_allow_hf32": True, "conv_allow_hf32": "false", "op_compile": False}
    texts = AscendDeviceInfo(**switches).context_map
    assert texts == {
        "device_type": "ascend",
        "matmul_allow_hf32": "true",
        "conv_allow_hf32": "false",
        "op_compile": "false",
    }
    with pytest.raises(RuntimeError, match="'op_compile' can only be 'true', 'false'. given 'on'"):
        AscendDeviceInfo(op_compile="on")


def test_ascend_takes_all_its_options():
    assert AscendDeviceInfo(**ASCEND).context_map == {"device_type": "ascend", **ASCEND}


@pytest.mark.parametrize("name", ASCEND)
def test_ascend_options_are_texts(name):
    with pytest.raises(RuntimeError, match=f"Parameter '{name}' should be str"):
        AscendDeviceInfo(**{name: 1})


@pytest.mark.parametrize(
    "name",
    [
        "input_format",
        "output_type",
        "precision_mode",
        "op_select_impl_mode",
        "buffer_optimize_mode",
    ],
)
def test_ascend_choices_are_named(name):
    with pytest.raises(RuntimeError, match=f"Ascend device info '{name}' can only be '") as caught:
        AscendDeviceInfo(**{name: "other"})
    assert f"'{ASCEND[name]}'" in str(caught.value)


def test_ascend_refuses_an_unknown_parameter():
    with pytest.raises(
        RuntimeError, match="Set ascend device info failed, unsupported parameter shape"
    ):
        AscendDeviceInfo(shape="1")


def test_devices_are_appended_in_order_and_each_kind_once():
    context = Context()
    context.append_device_info(GPUDeviceInfo())
    context.append_device_info(AscendDeviceInfo())
    kinds = [device["device_type"] for device in context.model_context.device_list]
    assert kinds == ["gpu", "ascend"]
    with pytest.raises(RuntimeError, match="Device info of type ascend has already been appended"):
        context.append_device_info(AscendDeviceInfo())


def test_only_a_device_can_be_appended():
    with pytest.raises(
        RuntimeError, match="Parameter 'device_info' should instance of CPUDeviceInfo"
    ):
        Context().append_device_info("cpu")


def test_options_hold_only_values_that_were_set():
    assert Context().to_options() == {}
    context = Context(thread_num=2, thread_affinity_core_list=(0, 1), enable_parallel=False)
    context.append_device_info(CPUDeviceInfo(precision_mode="fp16"))
    assert context.to_options() == {
        "thread_num": 2,
        "thread_affinity_core_list": (0, 1),
        "enable_parallel": False,
        "device_list": ({"device_type": "cpu", "precision_mode": "fp16"},),
    }


@pytest.mark.parametrize(
    ("options", "substitute", "kwargs"),
    [
        (AclOptions, "AscendDeviceInfo", ASCEND),
        (GpuOptions, "GPUDeviceInfo", {"precision_mode": "origin"}),
    ],
)
def test_deprecated_options_are_a_context_with_a_device(options, substitute, kwargs, monkeypatch):
    logged = []
    monkeypatch.setattr(check.log, "warning", lambda msg, *args: logged.append(msg % args))
    (device,) = options(**kwargs).context.model_context.device_list
    assert device.items() >= kwargs.items()
    assert logged == [
        f"'{options.__name__}' is deprecated from version 1.6.0 and will be removed in a future "
        f"version, use '{substitute}' instead."
    ]
