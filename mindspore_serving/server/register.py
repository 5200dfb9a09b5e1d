"""Names for use in a servable_config.py, from `mindspore_serving.servable`.

    from mindspore_serving.server import register

Importing it loads no server.  Names that are not in `__all__` are deprecated but still work.
"""

# ruff: noqa: F401  (the deprecated names)
from mindspore_serving.servable import model
from mindspore_serving.servable.context import (
    AclOptions,
    AscendDeviceInfo,
    Context,
    CPUDeviceInfo,
    GPUDeviceInfo,
    GpuOptions,
)
from mindspore_serving.servable.hf_model import HFModel, declare_hf_model
from mindspore_serving.servable.language import LanguageModel, declare_llm
from mindspore_serving.servable.legacy import (
    call_postprocess,
    call_postprocess_pipeline,
    call_preprocess,
    call_preprocess_pipeline,
    call_servable,
    declare_servable,
)
from mindspore_serving.servable.method import add_stage, register_method
from mindspore_serving.servable.model import Model, declare_model
from mindspore_serving.servable.pipeline import PipelineServable, register_pipeline
from mindspore_serving.servable.servable_method import ServableMethod, method

# The original has a module of this name; its functions are found by the old path, too.
vars(method).update(add_stage=add_stage, register_method=register_method)

__all__ = [
    "AscendDeviceInfo",
    "CPUDeviceInfo",
    "Context",
    "GPUDeviceInfo",
    "HFModel",
    "LanguageModel",
    "Model",
    "ServableMethod",
    "add_stage",
    "declare_hf_model",
    "declare_llm",
    "declare_model",
    "method",
    "register_method",
]
