"""Models and the server in the words of protocol v2: metadata, configurations, statistics."""

from collections.abc import Iterable
from typing import Any

from mindspore_serving import __version__
from mindspore_serving.core.service import Control
from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.tensor import MAX_INSTANCES
from mindspore_serving.wire.v2.datatypes import BY_DTYPE, BY_NAME

PLATFORM = "mindspore_serving"
LANGUAGE_PLATFORM = "mindspore_serving_llm"
EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "model_configuration",
    "model_repository",
    "statistics",
    "logging",
    "generate",
)


def server_metadata(*, has_memory: bool) -> dict[str, Any]:
    extensions = [*EXTENSIONS, *(["system_shared_memory"] if has_memory else [])]
    return {"name": PLATFORM, "version": __version__, "extensions": extensions}


def to_metadata(model: V2Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "versions": [str(version) for version in model.versions],
        "platform": LANGUAGE_PLATFORM if model.language else PLATFORM,
        "inputs": [_to_tensor(spec, model) for spec in model.signature.inputs],
        "outputs": [_to_tensor(spec, model) for spec in model.signature.outputs],
    }


def to_config(model: V2Model) -> dict[str, Any]:
    """The part of Triton's ModelConfig that means something here."""
    return {
        "name": model.name,
        "platform": LANGUAGE_PLATFORM if model.language else PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0 if model.language else MAX_INSTANCES,
        "input": [_to_config(spec) for spec in model.signature.inputs],
        "output": [_to_config(spec) for spec in model.signature.outputs],
        "model_transaction_policy": {"decoupled": model.streams},
    }


def to_statistics(control: Control, models: Iterable[V2Model]) -> dict[str, Any]:
    return {"model_stats": [_statistics_of(control, model) for model in models]}


def _statistics_of(control: Control, model: V2Model) -> dict[str, Any]:
    """What is decoded and encoded is part of `compute_infer`."""
    method = "@generate" if model.language else model.method
    found = control.counts(model.servable, model.version, method)
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": found.last_ms,
        "inference_count": found.num_instances,
        "execution_count": found.num_succeeded,
        "inference_stats": {
            "success": _times(found.num_succeeded, found.succeeded_ns),
            "fail": _times(found.num_failed, found.failed_ns),
            "queue": _times(found.num_waited, found.waited_ns),
            "compute_input": _times(found.num_succeeded, 0),
            "compute_infer": _times(found.num_succeeded, found.worker_ns),
            "compute_output": _times(found.num_succeeded, 0),
        },
    }


def _times(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _to_tensor(spec: ValueSpec, model: V2Model) -> dict[str, Any]:
    """The first dimension counts instances; "" is a type that a Python stage decides."""
    row = BY_DTYPE.get(spec.dtype or "")
    shape = [*([] if model.language else [-1]), *_sizes(spec)]
    return {"name": spec.name, "datatype": row.name if row else "", "shape": shape}


def _to_config(spec: ValueSpec) -> dict[str, Any]:
    row = BY_DTYPE.get(spec.dtype or "")
    kind = "INVALID" if row is None else "STRING" if row is BY_NAME["BYTES"] else row.name
    optional = {"optional": True} if spec.is_optional else {}
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": _sizes(spec), **optional}


def _sizes(spec: ValueSpec) -> list[int]:
    return [-1 if size is None else size for size in spec.shape or ()]
