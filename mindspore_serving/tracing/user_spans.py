"""Spans of user code of a servable or a client.

`opentelemetry.trace` sees the span of the batch that runs, and requests that are sent carry the
current span. Workers import OpenTelemetry only if the servable does; if it sets no provider, its
spans are exported as the server's.
"""

import sys
from contextvars import ContextVar

from mindspore_serving.tracing.options import TraceOptions
from mindspore_serving.tracing.span import SpanContext

current: ContextVar[SpanContext | None] = ContextVar("span_context", default=None)
"""Span to which the work of this thread belongs."""

_API = "opentelemetry.trace"


def follow(context: SpanContext | None) -> None:
    """Make `context` the span of the following work of this thread."""
    current.set(context)
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import attach

        attach(context)


def headers() -> dict[str, str]:
    """Return the headers with which requests of this thread belong to the current span."""
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import inject

        return inject()
    context = current.get()
    if context is None:
        return {}
    values = {"traceparent": context.traceparent, "tracestate": context.state}
    return {name: value for name, value in values.items() if value}


def provide(options: TraceOptions) -> None:
    """Export the spans of this process, if it creates any, by `options`."""
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import set_provider

        set_provider(options)
