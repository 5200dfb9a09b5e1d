import subprocess
import sys

from mindspore_serving.server import register
from tests.waiting import PATIENCE


def test_public_names_are_those_of_the_original_and_later_stages():
    assert sorted(register.__all__) == sorted(
        [
            "declare_model",
            "Model",
            "AscendDeviceInfo",
            "CPUDeviceInfo",
            "GPUDeviceInfo",
            "Context",
            "register_method",
            "add_stage",
            "HFModel",
            "LanguageModel",
            "declare_hf_model",
            "declare_llm",
            "ServableMethod",
            "method",
        ]
    )
    assert all(hasattr(register, name) for name in register.__all__)


def test_deprecated_names_can_still_be_imported():
    for name in (
        "declare_servable",
        "call_preprocess",
        "call_preprocess_pipeline",
        "call_servable",
        "call_postprocess",
        "call_postprocess_pipeline",
        "AclOptions",
        "GpuOptions",
        "register_pipeline",
        "PipelineServable",
    ):
        assert callable(getattr(register, name))


def test_importing_the_names_loads_no_server_and_no_runtime():
    code = """
import sys
from mindspore_serving.server import register
heavy = "grpc torch mindspore onnxruntime ray starlette asyncio httptools importlib.metadata"
print([name for name in heavy.split() if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"
