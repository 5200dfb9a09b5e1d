"""How spans leave: by which protocol, which of them, and what happens when they cannot."""

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.tracing.options import TraceOptions, is_requested
from mindspore_serving.tracing.otlp import OtlpTracer
from tests.ports import free_port
from tests.tracing.collector import by_grpc, by_http
from tests.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())
UNSAMPLED = (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-00".encode())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # seconds, with further tries


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """What was logged so far."""
    logged: list[str] = []

    def read() -> list[str]:
        logged.extend(capsys.readouterr().err.splitlines())
        return logged

    return read


@pytest.mark.parametrize("signal", ["", "TRACES_"])
def test_spans_leave_by_grpc_if_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, signal: str
) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}PROTOCOL", "grpc")
    with by_grpc() as collector:
        tracer = OtlpTracer(TraceOptions(collector.url))
        tracer.begin("asked", [SAMPLED]).end()
        tracer.close()
        found = collector.trace(TRACE, "asked").one("asked")
    assert found.parent_id == "b7ad6b7169203331"


def test_without_an_endpoint_that_of_the_environment_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with by_http() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        tracer = OtlpTracer(TraceOptions())
        tracer.begin("asked", [SAMPLED]).end()
        tracer.close()
        assert collector.trace(TRACE, "asked").one("asked").resource["service.name"] == "shop"


@pytest.mark.parametrize("protocol", ["http/json", "zipkin"])
def test_a_protocol_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with pytest.raises(InvalidInputs, match="expected http/protobuf or grpc"):
        OtlpTracer(TraceOptions("http://127.0.0.1:4318"))


@pytest.mark.parametrize(
    ("ratio", "header", "expected"),
    [
        (None, None, True),
        (0.0, None, False),
        (1.0, None, True),
        (0.0, SAMPLED, True),  # who began the trace has decided
        (1.0, UNSAMPLED, False),
        (None, UNSAMPLED, False),
    ],
)
def test_the_start_of_a_trace_decides_about_recording(
    ratio: float | None, header: tuple[bytes, bytes] | None, expected: bool
) -> None:
    with by_http() as collector:
        tracer = OtlpTracer(TraceOptions(collector.url, ratio))
        span = tracer.begin("asked", [header] if header else [])
        assert span.context.is_sampled is expected
        span.end()
        tracer.close()
        assert bool(collector.spans) is expected


def test_a_ratio_records_its_share() -> None:
    tracer = OtlpTracer(TraceOptions(f"http://127.0.0.1:{free_port()}", 0.25))
    found = [tracer.begin("asked", []).context.is_sampled for _ in range(4000)]
    tracer.close()
    assert 800 < sum(found) < 1200  # over 7 standard deviations from 1000


def test_the_sampler_of_the_environment_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracer = OtlpTracer(TraceOptions(f"http://127.0.0.1:{free_port()}"))
    assert not tracer.begin("asked", [SAMPLED]).context.is_sampled
    tracer.close()


@pytest.mark.parametrize("headers", [[(b"traceparent", b"00-nonsense")], [(b"tracestate", b"a=1")]])
def test_a_header_that_means_nothing_begins_a_new_trace(
    headers: list[tuple[bytes, bytes]],
) -> None:
    tracer = OtlpTracer(TraceOptions(f"http://127.0.0.1:{free_port()}"))
    first, second = (tracer.begin("asked", headers).context for _ in range(2))
    assert first.trace_id != second.trace_id
    tracer.close()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_missing_collector_is_a_single_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[str]], protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    tracer = OtlpTracer(TraceOptions(f"http://127.0.0.1:{free_port()}"))
    for _ in range(2000):  # more than may wait
        tracer.begin("asked", []).end()
    eventually(lines)
    tracer.close()
    (line,) = lines()
    assert "traces cannot be sent to" in line


def test_when_the_collector_is_back_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds
    with by_http() as collector:
        collector.is_failing = True
        tracer = OtlpTracer(TraceOptions(collector.url))
        tracer.begin("asked", []).end()
        eventually(lines)
        collector.is_failing = False
        tracer.begin("asked", [SAMPLED]).end()
        collector.trace(TRACE, "asked")
        eventually(lambda: len(lines()) == 2)
        tracer.close()
    assert "traces can be sent to" in lines()[1]


@pytest.mark.parametrize(
    ("values", "reason"),
    [(("collector:4317", None), "endpoint"), (("", 1.5), "ratio"), (("", -0.1), "ratio")],
)
def test_options_that_mean_nothing_are_refused(
    values: tuple[str, float | None], reason: str
) -> None:
    with pytest.raises(InvalidInputs, match=reason):
        TraceOptions(*values)


def test_traces_are_wanted_by_an_endpoint_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_requested("http://collector:4318")
    assert not is_requested("")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    assert is_requested("")


def test_a_server_without_traces_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys\n"
        "import mindspore_serving.server.serving, mindspore_serving.worker.worker\n"
        "import mindspore_serving.client, mindspore_serving.server.tracing\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.strip() == b"[]"
