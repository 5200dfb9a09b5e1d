"""The current span and the provider of OpenTelemetry, in a process whose own code uses them."""

import atexit

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import NonRecordingSpan, TraceFlags, TraceState
from opentelemetry.trace import SpanContext as OtelContext

from mindspore_serving.tracing.options import TraceOptions
from mindspore_serving.tracing.span import SpanContext

_EMPTY = contexts.Context()


def attach(context: SpanContext | None) -> None:
    """Make `context` the current span of this thread."""
    if context is None:
        contexts.attach(_EMPTY)
        return
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    own = OtelContext(context.trace_id, context.span_id, True, flags, state)
    contexts.attach(trace.set_span_in_context(NonRecordingSpan(own), _EMPTY))


def inject() -> dict[str, str]:
    """The headers that carry the current span, as OTEL_PROPAGATORS says."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def set_provider(options: TraceOptions) -> None:
    """Unless the servable has set one."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    from mindspore_serving.tracing.export import end, make_provider

    provider, processor = make_provider(options)
    trace.set_tracer_provider(provider)
    atexit.register(end, processor)
