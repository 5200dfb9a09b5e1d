"""Answers of protocol v2 and its extensions, with the protocol's field names.

JSON is encoded from these structs; messages of gRPC get the same fields.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=-1)]
"""A dimension; -1 if any size is accepted."""


class V2Error(msgspec.Struct):
    """An error, whose status is that of HTTP."""

    error: str


class ServerLive(msgspec.Struct):
    """Liveness of the server."""

    live: bool


class ServerReady(msgspec.Struct):
    """Readiness of all models."""

    ready: bool


class ServerMetadata(msgspec.Struct):
    """Name and version of the server, and the extensions of the protocol that it has."""

    name: str
    version: str
    extensions: list[str]


class ModelNames(msgspec.Struct):
    """Names of the deployed models."""

    models: list[str]


class TensorMetadata(msgspec.Struct):
    """Datatype and shape of an input or output; a first dimension of -1 counts instances."""

    name: str
    datatype: str
    shape: list[Size]


class ModelMetadata(msgspec.Struct, omit_defaults=True):
    """Metadata of a model: its versions, inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str] = {}


class TensorConfig(msgspec.Struct, omit_defaults=True):
    """An input or output in Triton's ModelConfig; `dims` have no dimension for instances."""

    name: str
    data_type: str
    dims: list[Size]
    optional: bool = False


class TransactionPolicy(msgspec.Struct):
    """Number of answers of a request in Triton's ModelConfig: any number if `decoupled`."""

    decoupled: bool


class ModelConfig(msgspec.Struct):
    """The fields of Triton's ModelConfig that mean something here."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]
    model_transaction_policy: TransactionPolicy


class StatisticDuration(msgspec.Struct):
    """Number of events, and their duration in all in nanoseconds."""

    count: Count
    ns: Count


class InferStatistics(msgspec.Struct):
    """Durations of the steps of requests; decoding and encoding are part of `compute_infer`.

    `cache_hit` is the search of the cache of answers, `cache_miss` also the storing of the answer.
    """

    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class ModelStatistics(msgspec.Struct):
    """Requests to a model since it was deployed; `last_inference` in milliseconds since 1970."""

    name: str
    version: str
    last_inference: Count
    inference_count: Count
    execution_count: Count
    inference_stats: InferStatistics


class Statistics(msgspec.Struct):
    """Statistics of models."""

    model_stats: list[ModelStatistics]


class RepositoryModel(msgspec.Struct):
    """State of a model in the repository, and the reason if it is not ready."""

    name: str
    version: str
    state: str
    reason: str


class RegisteredRegion(msgspec.Struct):
    """A registered region of shared memory: `byte_size` bytes at `offset` of the object `key`."""

    name: str
    key: str
    offset: Count
    byte_size: Count


class LogSettings(msgspec.Struct):
    """Levels that are logged."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: Count
    log_format: str


class TraceSettings(msgspec.Struct):
    """Settings of traces: one of `trace_rate` requests without a trace of their own has one."""

    trace_level: list[str]
    trace_rate: str
    trace_count: str = "-1"
    log_frequency: str = "0"
    trace_file: str = ""
    trace_mode: str = "opentelemetry"


class TextAnswer(msgspec.Struct, kw_only=True):
    """The answer of a language model, or a part of it: a list if the request has `n` over 1."""

    model_name: str
    model_version: str
    id: str | UnsetType = UNSET
    text_output: str | list[str]
