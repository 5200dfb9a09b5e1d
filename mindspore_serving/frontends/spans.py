"""Attributes of the spans of requests, by OpenTelemetry's conventions for HTTP and RPC.

A span has nothing of a body or a query, nor texts of errors, which can quote them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.frontends.access import CLIENT_LEFT
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.routes import ROUTE
from mindspore_serving.tracing.request_span import RequestSpan, Tracer, current
from mindspore_serving.tracing.span import REQUEST_ID, Attribute
from mindspore_serving.wire import status

# Paths that probes and Prometheus request every few seconds.
_UNTRACED = (b"/health", b"/livez", b"/readyz", b"/metrics", b"/v2/health/")


def begin_http(
    tracer: Tracer, head: RequestHead, request_id: bytes, scheme: str
) -> RequestSpan | None:
    """Begin the span of a request; None for paths of probes."""
    if head.target.startswith(_UNTRACED):
        return None
    method = head.method.decode("latin-1")
    span = tracer.begin(method, head.headers)
    if span.context.is_sampled:
        span.attributes.update(_describe(head, method, scheme))
        span.attributes[REQUEST_ID] = request_id.decode()
    return span


def _describe(head: RequestHead, method: str, scheme: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "http.request.method": method,
        "url.path": head.target.partition(b"?")[0].decode("latin-1"),
        "url.scheme": scheme,
        "network.protocol.version": head.version,
    }
    agent, host = head.fields.get(b"user-agent"), head.fields.get(b"host")
    if agent is not None:
        attributes["user_agent.original"] = agent.decode("latin-1")
    if host is not None:
        name, _, port = host.decode("latin-1").rpartition(":")
        if port.isdecimal() and len(port) <= 5 and name:
            attributes["server.address"], attributes["server.port"] = name, int(port)
        else:
            attributes["server.address"] = host.decode("latin-1")
    return attributes


def end_http(span: RequestSpan, code: int, route: str) -> None:
    """End a span with the status code and the route, '' for none, of the answer."""
    if route:
        span.name = f"{span.name} {route}"
        span.attributes["http.route"] = route
    if code == CLIENT_LEFT:
        span.fail(Code.CANCELLED.name.lower(), is_failed=False)
    else:
        span.attributes["http.response.status_code"] = code
    if code >= 500 and not span.has_failed:
        span.fail(str(code), is_failed=True)
    span.end()


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the path of the route that answers, as it was declared; "" if there is none."""
    return str(scope.get(ROUTE, ""))


def begin_rpc(tracer: Tracer, context: Context, method: str) -> None:
    """Begin the span of this task's gRPC call; `method` is package.Service/Method."""
    metadata = context.invocation_metadata() or ()
    span = start_rpc(tracer, metadata, method, log.request_id.get())
    current.set(span)

    def end(_: Any) -> None:
        code = None if context.cancelled() else context.code()
        span.attributes["rpc.response.status_code"] = "CANCELLED" if code is None else code.name
        span.end()

    done: Any = context  # the stubs have another type for the callback
    done.add_done_callback(end)


def start_rpc(
    tracer: Tracer, metadata: Iterable[tuple[str, str | bytes]], method: str, request_id: str
) -> RequestSpan:
    """Start the span of a gRPC call; `method` is package.Service/Method."""
    span = tracer.begin(method, metadata)
    span.attributes.update(
        {"rpc.system.name": "grpc", "rpc.method": method, REQUEST_ID: request_id}
    )
    return span


def fail(error: Exception) -> None:
    """Mark the span of this task's request as failed with `error`."""
    fail_span(current.get(), error)


def fail_span(span: RequestSpan | None, error: Exception) -> None:
    """Mark a span, if there is one, as failed with `error`."""
    if span is not None:
        code = error.code if isinstance(error, ServingError) else Code.FAILED
        span.fail(Code(code).name.lower(), is_failed=status.of(code).http >= 500)
