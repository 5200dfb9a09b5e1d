"""Tracer of a server: the SDK decides which requests are sampled, and exports their spans."""

import random
from collections.abc import Iterable

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import SpanContext as OtelContext
from opentelemetry.trace import get_current_span as span_of

from mindspore_serving.tracing.export import end, make_provider
from mindspore_serving.tracing.options import TraceOptions, changed_ratio
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import Span, SpanContext, new_id

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("mindspore_serving")
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class OtlpTracer:
    """A `Tracer` that exports spans by `options`.  Raises InvalidInputs for wrong options."""

    def __init__(self, options: TraceOptions) -> None:
        provider, self._processor = make_provider(options)
        self._resource = provider.resource
        self._sampler = provider.sampler
        self._propagator = propagate.get_global_textmap()
        self._names: dict[
            str | bytes, str
        ] = {}  # header in lower case -> its name for the propagator
        for name in self._propagator.fields:
            self._names[name.lower()] = self._names[name.lower().encode()] = name

    def begin(
        self,
        name: str,
        headers: "Iterable[tuple[bytes, bytes]] | Iterable[tuple[str, str | bytes]]",
    ) -> RequestSpan:
        """Start the span of a request, see `request_span.Tracer`."""
        carrier: dict[str, list[str]] = {}
        for header, value in headers:
            known = self._names.get(header)
            if known is not None:
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                carrier.setdefault(known, []).append(text)
        context = self._propagator.extract(carrier, Context()) if carrier else Context()
        parent = span_of(context).get_span_context()
        trace_id = parent.trace_id or random.getrandbits(128) or 1
        ratio = changed_ratio()
        if ratio is not None and not parent.trace_id:
            is_sampled = random.random() < ratio
            return RequestSpan(self, name, SpanContext(trace_id, new_id(), is_sampled), 0)
        decision = self._sampler.should_sample(context, trace_id, name, SpanKind.SERVER)
        state = decision.trace_state.to_header() if decision.trace_state else ""
        context_of_span = SpanContext(
            trace_id, new_id(), decision.decision is Decision.RECORD_AND_SAMPLE, state
        )
        return RequestSpan(self, name, context_of_span, parent.span_id)

    def record(self, span: Span) -> None:
        """Queue a span without blocking; the oldest is dropped if the queue is full."""
        context = _convert(span.context, is_remote=False)
        parent = None
        if span.parent_id:
            parent = _convert(span.context.at(span.parent_id), is_remote=span.is_server)
        attributes = (
            {**span.attributes, "error.type": span.error} if span.error else span.attributes
        )
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context,
                parent,
                self._resource,
                attributes,
                links=[Link(_convert(link, is_remote=False)) for link in span.links],
                kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
                status=_ERROR if span.is_failed else _UNSET,
                start_time=span.begin,
                end_time=span.end,
                instrumentation_scope=_SCOPE,
            )
        )

    def close(self) -> None:
        """Export queued spans, within a few seconds.  Blocks."""
        end(self._processor)


def _convert(context: SpanContext, *, is_remote: bool) -> OtelContext:
    state = TraceState.from_header([context.state]) if context.state else None
    flags = _SAMPLED if context.is_sampled else None
    return OtelContext(context.trace_id, context.span_id, is_remote, flags, state)
