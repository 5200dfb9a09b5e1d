"""Device types and ids of servables, as options of language models' runtimes and engines."""

import os

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import ENGINES, RUNTIMES
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.options import check_runtime, find_device
from mindspore_serving.llm.visible_devices import show_device


@pytest.mark.parametrize(
    ("device_type", "device_id", "runtime", "engine", "expected"),
    [
        ("none", 1, "openvino", "ours", None),
        ("cpu", 3, "openvino", "ours", "cpu"),
        ("gpu", 0, "torch", "ours", "cuda"),
        ("gpu", 2, "torch", "ours", "cuda:2"),
        ("gpu", 1, "transformers", "ours", "cuda:1"),
        ("ascend", 0, "mindspore", "ours", "ascend"),
        ("ascend", 1, "openvino", "vllm", "npu:1"),
        ("gpu", None, "openvino", "vllm", "cuda"),
        ("none", 1, "openvino", "vllm", "auto:1"),
        ("none", 0, "openvino", "vllm", None),
        ("cpu", 0, "openvino", "llama.cpp", None),
    ],
)
def test_the_device_type_reaches_the_runtime_or_the_engine(
    device_type: str, device_id: int | None, runtime: str, engine: str, expected: str | None
) -> None:
    assert find_device(device_type, device_id, runtime, engine) == expected


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_device_of_a_runtime_is_an_accepted_option(runtime: str) -> None:
    for name in RUNTIMES[runtime].devices.values():
        check_runtime(EngineConfig(device=name), runtime)


@pytest.mark.parametrize(
    ("device_type", "runtime", "engine", "text"),
    [
        (
            "ascend",
            "openvino",
            "ours",
            "'ascend', but runtime 'openvino' .* --runtime mindspore, mindir, or",
        ),
        ("gpu", "openvino", "ours", "'gpu', but runtime 'openvino' .* --runtime torch, or"),
        ("gpu", "mindspore", "ours", "computes on cpu, ascend only"),
        ("ascend", "torch", "ours", "computes on cpu, gpu only"),
        *(
            ("gpu", "openvino", name, name)
            for name, row in ENGINES.items()
            if not row.devices["cpu"]
        ),
    ],
)
def test_a_device_type_that_cannot_compute_the_model_is_refused(
    device_type: str, runtime: str, engine: str, text: str
) -> None:
    with pytest.raises(StartError, match=text):
        find_device(device_type, 0, runtime, engine)


def test_a_second_ascend_device_is_refused_with_the_variable_to_set() -> None:
    with pytest.raises(StartError, match="set ASCEND_RT_VISIBLE_DEVICES=1 and device_ids=0"):
        find_device("ascend", 1, "mindspore")


@pytest.mark.parametrize(
    ("kind", "variable"), [("cuda", "CUDA_VISIBLE_DEVICES"), ("npu", "ASCEND_RT_VISIBLE_DEVICES")]
)
def test_vllm_sees_the_device_of_its_worker(
    kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "")
    show_device(kind, "1")
    assert os.environ[variable] == "1"
    monkeypatch.setenv(variable, "4, 5")
    show_device(kind, "1")
    assert os.environ[variable] == "5"
    monkeypatch.setenv(variable, "4")
    with pytest.raises(StartError, match=f"'{kind}:1', but {variable} is '4': .* below 1"):
        show_device(kind, "1")


def test_a_platform_without_numbered_devices_is_refused() -> None:
    with pytest.raises(StartError, match="is 'tpu:1', expected 'tpu': numbers are for cuda, npu"):
        show_device("tpu", "1")
