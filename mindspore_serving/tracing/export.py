"""What sends spans to a collector by OTLP, with one line in the log when that fails.

The SDK's variables (OTEL_*) say the rest: the protocol, headers, certificates, sampling, how many
spans wait at most, and how long.
"""

import logging
import os
import threading
from collections.abc import Sequence

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.tracing.options import TraceOptions

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
END_SECONDS = 2.0
_PATH = "/v1/traces"
# Whose warnings `_Reporting` replaces: they would come with every batch.
_LOUD = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")


def make_provider(options: TraceOptions) -> tuple[TracerProvider, BatchSpanProcessor]:
    """A provider of tracers, and the processor that sends what they record.  Raises InvalidInputs
    for a protocol that OTLP does not have.
    """
    for name in _LOUD:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    sampler = None if options.ratio is None else ParentBasedTraceIdRatio(options.ratio)
    provider = TracerProvider(sampler, _resource(), shutdown_on_exit=False)
    processor = BatchSpanProcessor(_Reporting(_make_exporter(options.endpoint)))
    provider.add_span_processor(processor)
    return provider, processor


def end(processor: BatchSpanProcessor) -> None:
    """Send what waits, within END_SECONDS, and no more."""
    closing = threading.Thread(target=processor.shutdown, name="traces", daemon=True)
    closing.start()
    closing.join(END_SECONDS)
    if closing.is_alive():
        processor.span_exporter.shutdown()  # ends the wait for another try


class _Reporting(SpanExporter):
    """Logs when spans cannot be sent any more, and when they can again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._endpoint = getattr(exporter, "_endpoint", "")
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed and not self._has_failed:
            log.warning(
                "traces cannot be sent to %s; they are dropped until it can", self._endpoint
            )
        elif self._has_failed and not has_failed:
            log.warning("traces can be sent to %s again", self._endpoint)
        self._has_failed = has_failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _make_exporter(endpoint: str) -> SpanExporter:
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        # As with the variable OTEL_EXPORTER_OTLP_ENDPOINT, the path is OTLP's.
        whole = f"{endpoint.rstrip('/').removesuffix(_PATH)}{_PATH}" if endpoint else None
        return OTLPSpanExporter(endpoint=whole)
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint=endpoint or None)
    raise InvalidInputs(f"{_PROTOCOLS[1]} is '{protocol}', expected http/protobuf or grpc")


class _OneResource(Resource):
    """The only one of its process: the exporter compares that of every span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _resource() -> Resource:
    """What the environment says of this process; the service has a name all the same."""
    found = Resource.create()
    name = str(found.attributes[SERVICE_NAME])
    if name.startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "mindspore-serving"}))
    return _OneResource(found.attributes, found.schema_url)
