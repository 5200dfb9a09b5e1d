"""Workers that come and go with the requests, with real processes."""

import json
import os
import signal
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.master import autoscaling
from tests.e2e.fragile import SOURCE, is_ready
from tests.e2e.harness import Calls, config, eventually, in_flight, serving, workers, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE

# Requests wait while the file "hold" is there; loading fails while "broken" is.
HELD = (
    SOURCE
    + """
from pathlib import Path
here = Path(__file__).parent
if (here / "broken").exists():
    raise RuntimeError("cannot be loaded now")

def hold(x):
    while (here / "hold").exists():
        time.sleep(0.002)
    return os.getpid()

@register.register_method(output_names=["pid"])
def held(x):
    return register.add_stage(hold, x, outputs_count=1)
"""
)
SCALED = {
    "num_parallel_workers": 0,
    "max_workers": 3,
    "requests_per_worker": 1,
    "scale_down_delay": 0.5,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_servable(tmp_path, "toy", HELD)
    return tmp_path


def num_workers(calls: Calls) -> int:
    (row,) = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return row["num_workers"]


def test_workers_of_each_version_follow_its_requests_up_and_down(place, pool):
    hold = place / "toy" / "hold"
    hold.touch()
    versions = [config(place, "toy", **SCALED, version_number=number) for number in (1, 2)]
    for number in (1, 2):
        (place / "toy" / str(number)).mkdir()

    def num_workers_of(calls):
        rows = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
        return {row["version"]: row["num_workers"] for row in rows}

    with serving(place, *versions) as calls:
        assert num_workers_of(calls) == {1: 1, 2: 1}
        client = calls.client("toy", "held", 2)
        held = [pool.submit(client.infer, {"x": n}) for n in range(4)]
        eventually(lambda: num_workers_of(calls)[2] == 3)
        assert num_workers_of(calls) == {1: 1, 2: 3}
        assert is_ready(calls)
        hold.unlink()
        assert all("pid" in one.result(PATIENCE)[0] for one in held)
        eventually(lambda: num_workers_of(calls) == {1: 1, 2: 1})
        eventually(lambda: len(workers(os.getpid())) == 2)
        assert is_ready(calls)


def test_an_idle_servable_has_no_worker_and_a_request_starts_a_worker(place):
    with serving(place, config(place, "toy", **SCALED, min_workers=0)) as calls:
        eventually(lambda: not workers(os.getpid()))
        assert is_ready(calls)
        assert calls.http_call("GET", "/readyz?servable=toy")[0] == 200
        for _ in range(2):
            (pid,) = {int(one["pid"]) for one in calls.client("toy", "pid").infer({"x": 1})}
            eventually(lambda pid=pid: pid not in workers(os.getpid()))


def test_a_worker_answers_its_requests_before_ending(place, pool):
    hold = place / "toy" / "hold"
    hold.touch()
    with serving(place, config(place, "toy", **{**SCALED, "requests_per_worker": 2})) as calls:
        held = [pool.submit(calls.client("toy", "held").infer, {"x": n}) for n in range(4)]
        eventually(lambda: num_workers(calls) == 2)
        os.kill(workers(os.getpid())[0], signal.SIGTERM)  # an operator's, not the autoscaler's
        hold.unlink()
        assert all("pid" in one.result(PATIENCE)[0] for one in held)


def test_a_worker_that_dies_is_replaced_among_those_that_are_wanted(place):
    with serving(place, config(place, "toy", **SCALED, min_workers=2)) as calls:
        before = workers(os.getpid())
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: before[0] not in workers(os.getpid()) and num_workers(calls) == 2)


def test_a_start_that_fails_is_answered_and_tried_again(place, monkeypatch):
    monkeypatch.setattr(autoscaling, "RETRY_SECONDS", 0.5)
    with serving(place, config(place, "toy", **SCALED, min_workers=0)) as calls:
        eventually(lambda: not workers(os.getpid()))
        (place / "toy" / "broken").touch()
        refused = calls.client("toy", "pid").infer({"x": 1})
        assert "its workers have ended (a worker could not be started)" in refused["error"]
        (place / "toy" / "broken").unlink()
        eventually(lambda: "error" not in calls.client("toy", "pid").infer({"x": 1}))


def test_a_language_model_without_workers_is_listed_and_answers(tmp_path):
    chatty.build(tmp_path)
    scaled = config(tmp_path, "chatty", **SCALED, min_workers=0, llm_options={"dtype": "f32"})
    body = json.dumps({"model": "chatty", "prompt": "x", "max_tokens": 2}).encode()
    with serving(tmp_path, scaled) as calls:
        eventually(lambda: not workers(os.getpid()))
        listed = json.loads(calls.http_call("GET", "/v1/models")[1])
        assert [one["id"] for one in listed["data"]] == ["chatty"]
        assert calls.http_call("POST", "/v1/completions", body)[0] == 200


@pytest.mark.long
def test_a_server_stops_while_a_worker_is_added(place, pool):
    hold = place / "toy" / "hold"
    hold.touch()
    with serving(place, config(place, "toy", **SCALED)) as calls:
        held = [pool.submit(calls.client("toy", "held").infer, {"x": n}) for n in range(3)]
        eventually(lambda: in_flight(calls) == 3)
        server.stop()
        assert all("error" in one.result(PATIENCE) for one in held)
    eventually(lambda: not workers(os.getpid()))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_workers": 2, "min_workers": 3}, "'min_workers' is 3, expected at most"),
        ({"max_workers": 2, "num_parallel_workers": 2}, "'num_parallel_workers' is 2, expected 0"),
        ({"max_workers": 2, "device_ids": 0}, "'max_workers' is 2, expected at most one for each"),
        ({"max_workers": 65}, "max_workers"),
    ],
)
def test_contradictory_bounds_are_refused(place, options, text):
    with pytest.raises(RuntimeError, match=text):
        config(place, "toy", **options)
