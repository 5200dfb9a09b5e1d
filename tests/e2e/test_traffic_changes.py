"""Traffic split over versions that end, that a script changes, or that are not served."""

import http.client
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from mindspore_serving.core.traffic import choose_by_key
from tests.e2e.harness import Calls, config, eventually, serving, write_servable
from tests.e2e.versions import USERS, WEIGHTS, is_of, rest, versions, write_versions
from tests.llm import chatty
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traffic")
    write_versions(directory)
    return directory


def test_a_version_without_workers_gives_its_share_to_the_other(models: Path) -> None:
    options = {"traffic": WEIGHTS, "restart_policy": "never"}
    with serving(models, *versions(models, **options)) as calls:
        assert {rest(calls, {})[0] for _ in range(8)} == {"1", "2"}
        rows = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
        pids = [row["workers"][0]["pid"] for row in rows if row["version"] == 2]
        os.kill(pids[0], signal.SIGKILL)
        lost = [rest(calls, {}, is_lenient=True)[0] for _ in range(8)]  # some die with the worker
        assert set(lost) <= {"", "1", "2"}
        eventually(lambda: {rest(calls, {}, is_lenient=True)[0] for _ in range(8)} == {"1"})
        server.load_servable("toy")
        assert {rest(calls, {})[0] for _ in range(8)} == {"1"}


def test_a_script_changes_the_weights(models: Path) -> None:
    with serving(models, *versions(models)) as calls:
        assert rest(calls, {}) == ("", pytest.approx(3))  # the newest, without a rule
        server.load_servable("toy", traffic={2: 1})
        assert is_of(2, rest(calls, {}))
        with pytest.raises(RuntimeError, match=r"version 7.*1, 2, 3"):
            server.load_servable("toy", traffic={7: 1})
        with pytest.raises(RuntimeError, match="expected it in the config"):
            server.load_servable(versions(models)[0], traffic={1: 1})
        assert is_of(2, rest(calls, {}))
        server.load_servable("toy")
        assert rest(calls, {}) == ("", pytest.approx(3))


def test_traffic_to_a_version_that_is_not_served_is_refused(models: Path) -> None:
    configs = versions(models, traffic={1: 1, 9: 1})
    with pytest.raises(RuntimeError, match=r"version 9, but the versions to be served are 1, 2, 3"):
        server.start_servables(configs)
    server.stop()


def test_versions_of_a_language_model_share_its_requests(tmp_path: Path) -> None:
    chatty.build(tmp_path)
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20, "num_speculative_tokens": 0}
    configs = [
        config(
            tmp_path,
            "chatty",
            version_number=number,
            llm_options=options,
            traffic={1: 50, 2: 50},
            sticky="header:x-user",
            shadow={1: 100},
        )  # fmt: skip
        for number in (1, 2)
    ]
    users = {choose_by_key({1: 50, 2: 50}, "chatty", user): user for user in USERS}
    assert set(users) == {1, 2}
    with serving(tmp_path, *configs) as calls:
        for version, user in users.items():
            for is_stream in (False, True):
                body = {"model": "chatty", "prompt": "Hi", "max_tokens": 2, "stream": is_stream}
                assert _version_of(calls, "/v1/completions", body, user) == str(version)
            body = {"text_input": "Hi", "max_tokens": 2}
            path = "/v2/models/chatty/generate"
            assert _version_of(calls, path, body, user) == str(version)
            assert _version_of(calls, "/v2/models/chatty/versions/1/generate", body, user) is None
        counts = calls.http_call("GET", "/metrics")[1].decode()
    assert 'result="equal",servable="chatty",version="1"} 0' in counts


def _version_of(calls: Calls, path: str, body: dict[str, Any], user: str) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    try:
        headers = {"content-type": "application/json", "x-user": user}
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status == 200, text
        version = reply.getheader("x-model-version")
        if path.startswith("/v2"):
            expected = version or path.rpartition("/versions/")[2].partition("/")[0]
            assert json.loads(text)["model_version"] == expected
        return version
    finally:
        connection.close()


COUNTER = """
def add(total, x):
    return total + np.int64(x), total + np.int64(x)

@register.register_method(output_names=["total"])
def count(x):
    total = register.declare_state("total", (), "int64", initial=0)
    new, shown = register.add_stage(add, total, x, outputs_count=2)
    total.update(new)
    return shown

@method("y")
def same(x):
    return x
"""
CALLER = """
same = register.method("counter.same")

@register.register_method(output_names=["y"])
def call(x):
    return register.add_stage(same, x, outputs_count=1)
"""


def test_sequences_stay_in_their_version_and_calls_of_stages_are_split(tmp_path: Path) -> None:
    write_servable(tmp_path, "counter", COUNTER)
    write_servable(tmp_path, "caller", CALLER)
    options = {"traffic": {1: 50, 2: 50}, "shadow": {2: 100}}
    counters = [config(tmp_path, "counter", version_number=n, **options) for n in (1, 2)]
    with serving(tmp_path, *counters, config(tmp_path, "caller")) as calls:

        def step(number: int, **flags: str) -> list[int]:
            """Add `number` to the total of its sequence, and return that."""
            headers = {"sequence-id": str(number), **flags}
            body = json.dumps({"instances": [{"x": number}]})
            _, answer = calls.http_call("POST", "/model/counter:count", body, headers)
            return [row["total"] for row in json.loads(answer)["instances"]]

        numbers = range(1, 9)
        assert [step(number, **{"sequence-start": "true"}) for number in numbers] == [
            [number] for number in numbers
        ]
        counts = [_answered(calls, "counter", version, "count") for version in (1, 2)]
        assert sum(counts) == 8
        assert min(counts) >= 3
        server.load_servable("counter", traffic={2: 1})
        for times in (2, 3):
            assert [step(number) for number in numbers] == [[times * number] for number in numbers]
        later = [_answered(calls, "counter", version, "count") for version in (1, 2)]
        assert later == [3 * count for count in counts]
        server.load_servable("counter")
        for x in range(8):
            assert calls.post("caller", "call", [{"x": x}]) == {"instances": [{"y": x}]}
        counts = [_answered(calls, "counter", version, "same") for version in (1, 2)]
        assert sum(counts) == 8
        assert min(counts) >= 3


def _answered(calls: Calls, servable: str, version: int, method: str) -> int:
    """Requests to a method by the metrics."""
    text = calls.http_call("GET", "/metrics")[1].decode()
    labels = f'method="{method}",servable="{servable}",version="{version}"'
    row = rf'serving_requests_total{{code="ok",{labels}}} (.*)'
    return sum(int(float(count)) for count in re.findall(row, text))
