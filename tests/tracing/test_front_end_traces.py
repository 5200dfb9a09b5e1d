"""Spans of a server with several front-end processes, of what they pass on to the master."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")

from mindspore_serving import server
from tests.e2e.harness import config, serving, write_servable
from tests.tracing.collector import by_http
from tests.tracing.conftest import Traced
from tests.tracing.servables import TOY


@pytest.fixture(scope="module")
def forwarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A traced server with two front ends."""
    directory: Path = tmp_path_factory.mktemp("forwarded")
    write_servable(directory, "toy", TOY)
    with by_http() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
        server.start_tracing(collector.url)
        with serving(directory, config(directory, "toy"), front_ends=2) as calls:
            yield Traced(calls, collector)


@pytest.mark.parametrize(
    ("path", "route"),
    [("/v2/models/toy", "/v2/models/{name}"), ("/v2/models/none/ready", "/v2/models/{name}/ready")],
)
def test_forwarded_requests_have_the_route_of_the_master(
    forwarded: Traced, path: str, route: str
) -> None:
    def send(headers: dict[str, str]) -> None:
        forwarded.calls.http_call("GET", path, None, headers)

    name = f"GET {route}"
    assert forwarded.ask(send, name).one(name)["http.route"] == route


def test_forwarded_requests_without_a_route_have_none(forwarded: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        assert forwarded.calls.http_call("GET", "/v1/no/such/path", None, headers)[0] == 404

    assert "http.route" not in forwarded.ask(send, "GET").one("GET").attributes
