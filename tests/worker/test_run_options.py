"""Threads and precision that the operator sets for model files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.worker import loading
from tests.cli.conftest import write_onnx

NO_REMOTE: Any = SimpleNamespace(call=None)  # nothing is called in other workers
CONFIG = """
model = register.declare_model("net.onnx", "ONNX", backend="openvino", context=context)

@register.register_method(output_names=["y"])
def predict(a, b):
    return register.add_stage(model, a, b, outputs_count=1)
"""
CONTEXT = """
context = register.Context(thread_num=2)
context.append_device_info(register.CPUDeviceInfo(precision_mode="fp16"))
"""


@pytest.fixture
def properties(write, tmp_path: Path):
    """properties(body, **options): load a servable; returns its OpenVINO properties."""
    pytest.importorskip("openvino", reason="it computes in a precision")
    write_onnx(tmp_path / "tiny" / "1" / "net.onnx")

    def load(body: str, **options: Any) -> tuple[int, str]:
        setup = write(body, run_options=options, device_type="cpu")
        loaded = loading.load(setup, NO_REMOTE, lambda: lambda: None)
        (backend,) = loaded.backends.values()
        compiled: Any = backend._models[0].request.get_compiled_model()  # type: ignore[attr-defined]
        precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        return compiled.get_property("INFERENCE_NUM_THREADS"), precision

    return load


@pytest.mark.onnx
def test_options_of_the_operator_replace_those_of_the_declaration(properties) -> None:
    body = CONTEXT + CONFIG
    assert properties(body, thread_num=1, precision_mode="float32") == (1, "f32")
    assert properties(body)[0] == 2


@pytest.mark.onnx
def test_bfloat16_is_the_precision_where_the_processor_has_bfloat16(properties) -> None:
    from mindspore_serving.llm.runtimes.openvino.processor import capabilities

    expected = "bf16" if "BF16" in capabilities() else "f32"
    assert properties("context = None\n" + CONFIG, precision_mode="bfloat16")[1] == expected


@pytest.mark.onnx
def test_a_precision_is_refused_where_openvino_does_not_run_the_model(properties) -> None:
    body = "context = None\n" + CONFIG.replace('backend="openvino"', 'backend="onnxruntime"')
    with pytest.raises(StartError, match="precision is 'bfloat16' for model 'net.onnx', which"):
        properties(body, precision_mode="bfloat16")


def test_options_of_model_files_are_refused_without_any(write) -> None:
    body = """
    @register.register_method(output_names=["y"])
    def same(x):
        return register.add_stage(lambda x: x, x, outputs_count=1)
    """
    setup = write(body, run_options={"thread_num": 2, "precision_mode": "bfloat16"})
    with pytest.raises(StartError, match="model_threads and precision: servable 'tiny' has no mod"):
        loading.load(setup, NO_REMOTE, lambda: lambda: None)
