"""A running server has the paths and the metrics that deploy/ asks for."""

import re
from collections.abc import Iterator

import pytest

from tests.deploy.manifests import all_documents, find
from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("deployed")
    chatty.build(directory)
    model = config(directory, "chatty", llm_options={"dtype": "f32", "kv_cache_memory": 8 << 20})
    with serving(directory, model) as found:
        yield found


@pytest.fixture(scope="module")
def metrics(calls: Calls) -> set[str]:
    """The names in /metrics, when those that are asked for are there: an engine reports its own
    after its first steps."""
    calls.post("chatty", "generate", [{"prompt": "Hello", "max_tokens": 1}])

    def names() -> set[str]:
        status, body = calls.http_call("GET", "/metrics")
        assert status == 200
        return set(re.findall(r"^(\w+)(?:\{| )", body.decode(), re.MULTILINE))

    return eventually(
        lambda: found if asked_for() <= (found := names()) else None, what=str(asked_for())
    )


def asked_for() -> set[str]:
    """The metrics that the number of pods follows."""
    return {one["name"] for _, document in all_documents() for one in find(document, "metric")}


def test_every_path_that_is_probed_or_scraped_answers(calls):
    probed = {
        one["path"]
        for _, document in all_documents()
        for one in find(document, "httpGet")
        if "path" in one
    }
    scraped = {
        one["path"]
        for _, document in all_documents()
        for group in find(document, "endpoints")
        for one in group
    }
    scraped |= {
        path
        for _, document in all_documents()
        for path in find(document, "prometheus.kserve.io/path")
    }
    assert probed == {"/livez", "/readyz"}
    assert scraped == {"/metrics"}
    for path in probed | scraped:
        assert calls.http_call("GET", path)[0] == 200, path


def test_every_metric_that_the_number_of_pods_follows_exists(metrics):
    assert asked_for() == {"serving_requests_in_flight", "serving_llm_requests_waiting"}
    assert asked_for() <= metrics


def test_the_adapter_of_prometheus_offers_every_scaling_metric(metrics):
    (query,) = (one for _, document in all_documents() for one in find(document, "seriesQuery"))
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', query)
    assert {name for name in metrics if re.fullmatch(pattern, name)} == asked_for()
