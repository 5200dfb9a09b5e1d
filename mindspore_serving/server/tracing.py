"""The public function for OpenTelemetry traces: the collector and the sampling ratio."""

from mindspore_serving import extras, log
from mindspore_serving.errors import StartError
from mindspore_serving.servable.check import check_number, check_str
from mindspore_serving.server import startup
from mindspore_serving.tracing.options import TraceOptions, is_disabled


def start_tracing(endpoint: str = "", sampling_ratio: float | None = None) -> None:
    """Record OpenTelemetry traces of requests, and send them to a collector by OTLP.

    Call it before the servers and servables are started.  It needs the extra `traces`.  Further
    settings are the standard environment variables OTEL_*, such as OTEL_EXPORTER_OTLP_PROTOCOL
    ("http/protobuf", the default, or "grpc"), OTEL_SERVICE_NAME and OTEL_BSP_MAX_QUEUE_SIZE; see
    `mindspore-serving docs tracing`.  With OTEL_SDK_DISABLED=true nothing is recorded.

    Args:
        endpoint: URL of the collector, such as "http://collector:4318"; "" for the URL in
            OTEL_EXPORTER_OTLP_ENDPOINT, or a collector on this machine.
        sampling_ratio: share, 0 to 1, of requests to record, of those without a `traceparent`; None
            for the sampler of OTEL_TRACES_SAMPLER, which records all by default.

    Raises:
        RuntimeError: an argument is invalid, the extra is not installed, or a server or servable
            was started before; everything is stopped then.
    """
    with startup.all_or_nothing():
        ratio = sampling_ratio
        if ratio is not None:
            ratio = check_number("sampling_ratio", ratio)
        options = TraceOptions(check_str("endpoint", endpoint) if endpoint else "", ratio)
        if is_disabled():
            log.info("OTEL_SDK_DISABLED is true: requests are not traced")
            return
        try:
            startup.run_on_server(lambda serving: serving.start_tracing(options))
        except ModuleNotFoundError as error:
            raise StartError(extras.missing(error, "start_tracing")) from error
