"""Export of spans to a collector by OTLP; a failure is one line of the log.

The SDK's variables (OTEL_*) set the protocol, headers, certificates, sampling, and the size of the
queue.
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
# Loggers whose warnings, one per batch, are replaced by `_Reporting`.
_LOUD = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")


def make_provider(options: TraceOptions) -> tuple[TracerProvider, BatchSpanProcessor]:
    """Return a provider of tracers, and the processor that exports its spans.

    Raises InvalidInputs for a protocol that OTLP does not have.
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
    """Export queued spans within END_SECONDS, and drop the rest."""
    closing = threading.Thread(target=processor.shutdown, name="traces", daemon=True)
    closing.start()
    closing.join(END_SECONDS)
    if closing.is_alive():
        processor.span_exporter.shutdown()  # interrupts the wait for a retry


class _Reporting(SpanExporter):
    """Exporter that logs when spans cannot be sent, and when they can again."""

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

        # Append the path, as the SDK does to OTEL_EXPORTER_OTLP_ENDPOINT.
        url = f"{endpoint.rstrip('/').removesuffix(_PATH)}{_PATH}" if endpoint else None
        return OTLPSpanExporter(endpoint=url)
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint=endpoint or None)
    raise InvalidInputs(f"{_PROTOCOLS[1]} is '{protocol}', expected http/protobuf or grpc")


class _UniqueResource(Resource):
    """Resource with cheap comparison, as the exporter compares that of every span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _resource() -> Resource:
    """Return the resource of the environment, with a name of the service."""
    resource = Resource.create()
    name = str(resource.attributes[SERVICE_NAME])
    if name.startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "mindspore-serving"}))
    return _UniqueResource(resource.attributes, resource.schema_url)
