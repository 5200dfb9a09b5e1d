"""Spans as data, and their context in the format of W3C Trace Context."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Attribute: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Attribute]

# Names of attributes that OpenTelemetry's conventions do not have.
SERVABLE = "mindspore_serving.servable.name"
VERSION = "mindspore_serving.servable.version"
METHOD = "mindspore_serving.method"
REQUEST_ID = "mindspore_serving.request.id"
WORKER = "mindspore_serving.worker"
STAGE = "mindspore_serving.stage"
BATCH_SIZE = "mindspore_serving.batch.size"
CACHE = "mindspore_serving.cache"
BATCH_REQUESTS = "mindspore_serving.batch.requests"


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Identity of a span: trace and span id.

    Spans that are not `is_sampled` are not recorded, but their contexts are propagated, so that all
    services decide alike. `state` is the header tracestate.
    """

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""

    def at(self, span_id: int) -> "SpanContext":
        """Return the context of another span in the same trace."""
        return SpanContext(self.trace_id, span_id, self.is_sampled, self.state)

    def child(self) -> "SpanContext":
        """Return the context of a new span."""
        return self.at(new_id())

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


def from_traceparent(traceparent: str, state: str = "") -> SpanContext:
    """Parse `SpanContext.traceparent`."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), flags == "01", state)


def new_id() -> int:
    """Return a random id of a span, which is never 0."""
    return random.getrandbits(64) or 1


@dataclass(frozen=True, slots=True)
class Span:
    """Span that has ended.

    `parent_id` is a span of the same trace, 0 for none; `begin` and `end` are nanoseconds since
    1970; `error` is the kind of an error, "" for none, and `is_failed` tells that it counts as an
    error of the server. `links` are other spans that took part in it.
    """

    name: str
    context: SpanContext
    parent_id: int
    begin: int
    end: int
    attributes: Attributes
    error: str = ""
    is_failed: bool = False
    is_server: bool = False  # span of a request in the server
    links: Sequence[SpanContext] = ()


class SpanRecorder(Protocol):
    """Recorder of spans."""

    def record(self, span: Span) -> None:
        """Record a span without blocking; spans are dropped if the queue is full."""
        ...
