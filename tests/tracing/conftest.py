"""One traced server for all tests of a file, and the collector that it sends to."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.llm import chatty

pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")

from tests.tracing.collector import Collector, Trace, by_http
from tests.tracing.servables import OWN, TOY

PARENT = "1234567890abcdef"  # a span of a client
CONTEXT = 1 << 15  # tokens, more than are generated before a client that leaves is noticed


@dataclass(slots=True)
class Traced:
    """A server whose spans `collector` gets."""

    calls: Calls
    collector: Collector

    def ask(self, send: Callable[[dict[str, str]], Any], *names: str, flags: str = "01") -> Trace:
        """The trace of what `send` sends with the headers it is given, when it has spans of these
        names."""
        trace_id = secrets.token_hex(16)
        send({"traceparent": f"00-{trace_id}-{PARENT}-{flags}", "tracestate": "them=1"})
        return self.collector.trace(trace_id, *names)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    directory: Path = tmp_path_factory.mktemp("traced")
    write_servable(directory, "toy", TOY)
    write_servable(directory, "own", OWN)
    chatty.build(directory, context=CONTEXT)
    options = {"dtype": "f32", "kv_cache_memory": 64 << 20, "embeddings": True}
    with by_http() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
        server.start_tracing(collector.url)
        configs = [config(directory, name) for name in ("toy", "own")]
        configs.append(config(directory, "chatty", llm_options=options))
        with serving(directory, *configs) as calls:
            yield Traced(calls, collector)
