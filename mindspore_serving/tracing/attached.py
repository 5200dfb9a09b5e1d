"""Current span and provider of OpenTelemetry, in a process whose user code uses it."""

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
    span_context = OtelContext(context.trace_id, context.span_id, True, flags, state)
    contexts.attach(trace.set_span_in_context(NonRecordingSpan(span_context), _EMPTY))


def inject() -> dict[str, str]:
    """Return the headers with the current span, in the format of OTEL_PROPAGATORS."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def set_provider(options: TraceOptions) -> None:
    """Set the provider of tracers, unless the servable has set one."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    from mindspore_serving.tracing.export import end, make_provider

    provider, processor = make_provider(options)
    trace.set_tracer_provider(provider)
    atexit.register(end, processor)
