"""Spans of a servable's own code, and of a client's: `opentelemetry.trace` sees the span of the
batch that runs, and requests that are sent carry the span that is current.

Workers import OpenTelemetry only where the servable does; if it sets no provider, its spans go
where the server's go.
"""

import sys
from contextvars import ContextVar

from mindspore_serving.tracing.options import TraceOptions
from mindspore_serving.tracing.span import SpanContext

current: ContextVar[SpanContext | None] = ContextVar("span_context", default=None)
"""The span that this thread's work belongs to."""

_API = "opentelemetry.trace"


def follow(context: SpanContext | None) -> None:
    """What this thread does from now on belongs to `context`."""
    current.set(context)
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import attach

        attach(context)


def headers() -> dict[str, str]:
    """What a request that this thread sends is to carry, so that it belongs to the current span."""
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import inject

        return inject()
    context = current.get()
    if context is None:
        return {}
    found = {"traceparent": context.traceparent, "tracestate": context.state}
    return {name: value for name, value in found.items() if value}


def provide(options: TraceOptions) -> None:
    """Have the spans of this process, if it makes any, sent as `options` say."""
    if _API in sys.modules:
        from mindspore_serving.tracing.attached import set_provider

        set_provider(options)
