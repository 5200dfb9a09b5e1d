"""Conversion of models to the metadata, configurations and statistics of protocol v2."""

from collections.abc import Iterable

from mindspore_serving import __version__
from mindspore_serving.core import signature as signatures
from mindspore_serving.core.service import Control
from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.frontends.v2.answers import (
    InferStatistics,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    ServerMetadata,
    StatisticDuration,
    Statistics,
    TensorConfig,
    TensorMetadata,
    TransactionPolicy,
)
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
    "classification",
    "logging",
    "generate",
    "sequence",
    "sequence(string_id)",
)


def server_metadata(*, has_memory: bool) -> ServerMetadata:
    """Return the metadata of the server."""
    extensions = [*EXTENSIONS, *(["system_shared_memory"] if has_memory else [])]
    return ServerMetadata(PLATFORM, __version__, extensions)


def to_metadata(model: V2Model) -> ModelMetadata:
    """Return the metadata of a model."""
    return ModelMetadata(
        model.name,
        [str(version) for version in model.versions],
        LANGUAGE_PLATFORM if model.language else PLATFORM,
        [_to_tensor(spec, model) for spec in model.signature.inputs],
        [_to_tensor(spec, model) for spec in model.signature.outputs],
        {} if model.signature.is_batched else {"batch": signatures.describe_batch(model.signature)},
    )


def to_config(model: V2Model) -> ModelConfig:
    """Return the configuration of a model, as Triton has it."""
    return ModelConfig(
        model.name,
        LANGUAGE_PLATFORM if model.language else PLATFORM,
        PLATFORM,
        0 if model.language or not model.signature.is_batched else MAX_INSTANCES,
        [_to_config(spec) for spec in model.signature.inputs],
        [_to_config(spec) for spec in model.signature.outputs],
        TransactionPolicy(model.streams),
    )


def to_statistics(control: Control, models: Iterable[V2Model]) -> Statistics:
    """Return the statistics of models."""
    return Statistics([_statistics_of(control, model) for model in models])


def _statistics_of(control: Control, model: V2Model) -> ModelStatistics:
    method = "@generate" if model.language else model.method
    counts = control.counts(model.servable, model.version, method)
    num_run = max(0, counts.num_succeeded - counts.num_hits - counts.num_joined)
    return ModelStatistics(
        model.name,
        str(model.version),
        counts.last_ms,
        counts.num_instances,
        num_run,
        InferStatistics(
            success=StatisticDuration(counts.num_succeeded, counts.succeeded_ns),
            fail=StatisticDuration(counts.num_failed, counts.failed_ns),
            queue=StatisticDuration(counts.num_waited, counts.waited_ns),
            compute_input=StatisticDuration(num_run, 0),
            compute_infer=StatisticDuration(num_run, counts.worker_ns),
            compute_output=StatisticDuration(num_run, 0),
            cache_hit=StatisticDuration(counts.num_hits, counts.hit_ns),
            cache_miss=StatisticDuration(counts.num_misses, counts.miss_ns),
        ),
    )


def _to_tensor(spec: ValueSpec, model: V2Model) -> TensorMetadata:
    """Describe an input or output; the datatype is "" if a Python stage decides it."""
    row = BY_DTYPE.get(spec.dtype or "")
    is_whole = model.language or not model.signature.is_batched
    shape = [*([] if is_whole else [-1]), *_sizes(spec)]
    return TensorMetadata(spec.name, row.name if row else "", shape)


def _to_config(spec: ValueSpec) -> TensorConfig:
    row = BY_DTYPE.get(spec.dtype or "")
    kind = "INVALID" if row is None else "STRING" if row is BY_NAME["BYTES"] else row.name
    return TensorConfig(spec.name, f"TYPE_{kind}", _sizes(spec), spec.is_optional)


def _sizes(spec: ValueSpec) -> list[int]:
    return [-1 if size is None else size for size in spec.shape or ()]
