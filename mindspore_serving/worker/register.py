"""`from mindspore_serving.worker import register` of versions 1.1 to 1.4: see `server.register`."""

from mindspore_serving.servable.context import AclOptions, GpuOptions
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

__all__ = [
    "AclOptions",
    "GpuOptions",
    "Model",
    "PipelineServable",
    "add_stage",
    "call_postprocess",
    "call_postprocess_pipeline",
    "call_preprocess",
    "call_preprocess_pipeline",
    "call_servable",
    "declare_model",
    "declare_servable",
    "register_method",
    "register_pipeline",
]
