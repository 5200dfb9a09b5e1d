"""An OpenTelemetry collector in this process: takes OTLP over HTTP or gRPC, and keeps the spans."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Protobuf
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.waiting import eventually


@dataclass(slots=True)
class Received:
    """A span as it came.  Ids are hexadecimal, "" for none."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    begin: int
    end: int
    kind: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_error: bool
    state: str
    links: list[str]

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


@dataclass(slots=True)
class Collector:
    """`url` is where spans are to be sent; they are refused while it `is_failing`."""

    url: str = ""
    is_failing: bool = False
    spans: list[Received] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def take(self, request: Any) -> None:
        with self.lock:
            for group in request.resource_spans:
                resource = _values(group.resource.attributes)
                for scope in group.scope_spans:
                    self.spans += [_read(span, resource) for span in scope.spans]

    def trace(self, trace_id: str, *names: str) -> "Trace":
        """The spans of a trace, once there is one of each of `names`."""

        def found() -> list[Received]:
            with self.lock:
                mine = [span for span in self.spans if span.trace_id == trace_id]
            missing = {*names} - {span.name for span in mine}
            return [] if missing else mine

        return Trace(eventually(found, what=f"{names} of {trace_id}, in {self.spans}"))

    def has(self, trace_id: str) -> bool:
        with self.lock:
            return any(span.trace_id == trace_id for span in self.spans)


@dataclass(slots=True)
class Trace:
    spans: list[Received]

    def one(self, name: str) -> Received:
        """The only span called so."""
        (found,) = self.all(name)
        return found

    def all(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def parent(self, span: Received) -> Received:
        (found,) = [one for one in self.spans if one.id == span.parent_id]
        return found

    def path(self, span: Received) -> list[str]:
        """The names of its ancestors in this trace, and its own, from the top."""
        above = [one for one in self.spans if one.id == span.parent_id]
        return [*(self.path(above[0]) if above else []), span.name]


@contextmanager
def by_http() -> Iterator[Collector]:
    collector = Collector()

    class Export(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            if not collector.is_failing:
                collector.take(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(400 if collector.is_failing else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Export) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def by_grpc() -> Iterator[Collector]:
    collector = Collector()

    class Export(rpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.take(request)
            return pb.ExportTraceServiceResponse()

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        rpc.add_TraceServiceServicer_to_server(Export(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        collector.url = f"http://127.0.0.1:{port}"
        try:
            yield collector
        finally:
            server.stop(None).wait()


def _read(span: Protobuf, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        _values(span.attributes),
        resource,
        span.status.code == Status.STATUS_CODE_ERROR,
        span.trace_state,
        [link.span_id.hex() for link in span.links],
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
