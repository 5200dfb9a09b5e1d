"""Spans of a server with several front-end processes, of what they pass on to the master."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")

from mindspore_serving import server
from mindspore_serving.tracing.span import REQUEST_ID
from tests.e2e.harness import config, eventually, serving, write_servable
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
        options = {"front_ends": 2, "allow_loading": True}
        with serving(directory, config(directory, "toy"), **options) as calls:
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


def set_traces(forwarded: Traced, settings: dict[str, object]) -> tuple[int, dict[str, object]]:
    status, body = forwarded.calls.http_call("POST", "/v2/trace/setting", json.dumps(settings))
    return status, json.loads(body)


def traced_ids(forwarded: Traced, start: str) -> set[str]:
    """The ids of requests whose spans have arrived."""
    with forwarded.collector.lock:
        found = [span.attributes.get(REQUEST_ID, "") for span in forwarded.collector.spans]
    return {name for name in found if name.startswith(start)}


def test_the_rate_can_be_changed_in_all_front_ends(forwarded: Traced) -> None:
    def send(name: str) -> None:
        for number in range(8):  # each on a connection of its own: both front ends get some
            headers = {"x-request-id": f"{name}-{number}"}
            forwarded.calls.post("toy", "double", [{"x": 1}], headers)

    for level, rate, name in ((["OFF"], "0", "off"), ("TIMESTAMPS", "1", "on")):
        status, answer = set_traces(forwarded, {"trace_level": level})
        assert (status, answer["trace_rate"]) == (200, rate)
        send(name)
    status, answer = set_traces(forwarded, {"trace_rate": "1000000000"[:9]})
    assert (status, answer["trace_rate"]) == (200, "100000000")
    send("rare")
    assert set_traces(forwarded, {"trace_rate": None})[1]["trace_rate"] == "1"
    send("all")
    eventually(lambda: len(traced_ids(forwarded, "all")) == 8)
    assert len(traced_ids(forwarded, "on")) == 8
    assert traced_ids(forwarded, "off") | traced_ids(forwarded, "rare") == set()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trace_level": ["TENSORS"]}, "trace_level is 'TENSORS', expected OFF or TIMESTAMPS"),
        ({"trace_rate": "0"}, "trace_rate is '0', expected a number from 1"),
        ({"trace_rate": "10", "trace_level": "OFF"}, "set trace_level to TIMESTAMPS, too"),
        ({"trace_count": "5"}, "only the operator of the server can change it"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    forwarded: Traced, settings: dict[str, object], problem: str
) -> None:
    status, answer = set_traces(forwarded, settings)
    assert status == 400
    assert problem in str(answer["error"])
    assert set_traces(forwarded, {})[1]["trace_rate"] == "1"


def test_the_settings_of_a_single_model_cannot_be_changed(forwarded: Traced) -> None:
    path, body = "/v2/models/toy/trace/setting", '{"trace_level": ["OFF"]}'
    status, answer = forwarded.calls.http_call("POST", path, body)
    assert (status, b"of all models at once" in answer) == (400, True)
