"""One traced server for all tests of a file, and the collector that it sends to."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from mindspore_serving.server import ServableStartConfig
from tests.e2e.harness import Calls, config, serving, write_servable

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
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    """It serves what the file calls SERVED: some of "toy", "own" and "chatty"."""
    directory: Path = tmp_path_factory.mktemp("traced")
    with by_http() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
        server.start_tracing(collector.url)
        configs = [written(directory, name) for name in request.module.SERVED]
        with serving(directory, *configs) as calls:
            yield Traced(calls, collector)


def written(directory: Path, name: str) -> ServableStartConfig:
    """The servable `name`, in `directory`, as it is to be started."""
    if name != "chatty":
        write_servable(directory, name, {"toy": TOY, "own": OWN}[name])
        return config(directory, name)
    from tests.llm import chatty  # with torch

    chatty.build(directory, context=CONTEXT)
    options = {"dtype": "f32", "kv_cache_memory": 64 << 20, "embeddings": True}
    return config(directory, "chatty", llm_options=options)
