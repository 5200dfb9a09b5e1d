"""The master with real worker processes: deploy, call, lose a worker, stop."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
import pytest_asyncio

from mindspore_serving.core import backoff
from mindspore_serving.errors import Code, NotFound, ServableUnavailable, StartError
from tests.master.mastered import Server
from tests.waiting import PATIENCE

TINY = """
@method("y")
def twice(x):
    return x * 2

@method("y")
def pid(x):
    return os.getpid()

@method("y")
def dying(x):
    os._exit(3)

@method("y")
def hanging(x):
    time.sleep(600)

@method("y")
def once(x):
    marker = os.path.join(os.path.dirname(__file__), "marker")
    if not os.path.exists(marker):
        with open(marker + "-", "w") as file:
            file.write(str(os.getpid()))
        os.rename(marker + "-", marker)
        time.sleep(600)
    return os.getpid()
"""
WITH_MODEL = """
def add(x1, x2):
    return x1 + x2

model = register.declare_model(add, model_format="Python")

def double(x):
    return x * 2

def ask(x):
    return model.call(x, x), os.getpid()

def get_owner(x):
    return os.environ.get("SERVING_DEVICE_ID", "none")

@register.register_method(output_names=["y", "owner"])
def staged(x1, x2):
    y = register.add_stage(model, x1, x2, outputs_count=1)
    y = register.add_stage(double, y, outputs_count=1)
    return y, register.add_stage(get_owner, x1, outputs_count=1)

@register.register_method(output_names=["y", "pid"])
def called(x):
    return register.add_stage(ask, x, outputs_count=2)

@register.register_method(output_names=["y"])
def only_model(x1, x2):
    return register.add_stage(model, x1, x2, outputs_count=1)
"""


def children():
    """The processes that this one started and has not waited for."""
    paths = Path("/proc/self/task").glob("*/children")
    return {pid for path in paths for pid in path.read_text().split()}


@pytest.fixture
async def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Server(tmp_path)
    made.write("tiny", TINY)
    yield made
    await asyncio.wait_for(made.master.stop(grace=5.0), PATIENCE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(tmp_path_factory):
    """Two workers, of tests that leave behind as many."""
    directory = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        made = Server(directory)
        made.write("tiny", TINY)
        await made.deploy(made.deployment(num_parallel_workers=2))
        yield made
        await asyncio.wait_for(made.master.stop(grace=5.0), PATIENCE)


on_shared_loop = pytest.mark.asyncio(loop_scope="module")


# --- serving ------------------------------------------------------------------------------------


@on_shared_loop
async def test_a_deployed_servable_answers(serving):
    assert await serving.outputs("twice", {"x": 4}, {"x": [1, 2]}) == [{"y": 8}, {"y": [2, 4]}]
    assert serving.master.control.is_ready
    assert serving.master.control.describe() == [
        {
            "name": "tiny",
            "version": 1,
            "methods": {
                name: {
                    "inputs": ["x"],
                    "outputs": ["y"],
                    "input_specs": [
                        {
                            "name": "x",
                            "dtype": None,
                            "shape": None,
                            "example": {"value": 1.0, "shape": []},
                        }
                    ],
                    "output_specs": [{"name": "y", "dtype": None, "shape": None}],
                }
                for name in ("twice", "pid", "dying", "hanging", "once")
            },
            "num_workers": 2,
        }
    ]


@on_shared_loop
async def test_several_workers_share_the_instances_of_a_request(serving):
    assert len(await serving.pids(2)) == 2


@on_shared_loop
async def test_unknown_servables_and_methods_are_refused(serving):
    for options in ({"method": "missing"}, {"method": "twice", "servable": "other"}):
        reply = await serving.ask(options.pop("method"), {"x": 1}, **options)
        assert isinstance(reply.failure, NotFound)


async def test_a_server_without_deployments_is_not_ready(server):
    assert not server.master.control.is_ready
    assert server.master.control.describe() == []


# --- starting -----------------------------------------------------------------------------------


async def test_a_servable_that_cannot_be_loaded_is_a_start_error_with_its_reason(server):
    server.write("tiny", "raise OSError('disk on fire')")
    with pytest.raises(StartError) as caught:
        await server.deploy(server.deployment(num_parallel_workers=1))
    assert str(caught.value).startswith("Fail to start workers: servable tiny, worker 0: ")
    assert "disk on fire" in str(caught.value)
    assert "servable_config.py, line" in str(caught.value)


async def test_a_death_while_loading_is_a_start_error_with_the_end_of_the_log(server):
    server.write("tiny", "print('no such key', flush=True)\nos._exit(7)")
    with pytest.raises(StartError, match="(?s)exit status 7.*no such key"):
        await server.deploy(server.deployment(num_parallel_workers=1))


# --- losing workers -----------------------------------------------------------------------------


@on_shared_loop
async def test_a_dead_worker_is_replaced_and_its_request_is_answered_by_another(serving):
    first, second = await serving.pids(2)
    pending = asyncio.create_task(serving.ask("once", {"x": 1}))
    await serving.until(serving.marker.exists)
    victim = int(serving.marker.read_text())
    os.kill(victim, signal.SIGKILL)
    (answer,) = (await pending).instances
    assert json.loads(answer) == {"y": first + second - victim}
    await serving.until(lambda: serving.master.control.is_ready)
    assert len(await serving.pids(2) - {victim}) == 2


@on_shared_loop
async def test_a_request_that_kills_every_worker_is_answered_with_the_news(serving):
    reply = await serving.ask("dying", {"x": 1})
    assert reply.failure.code == Code.WORKER_UNAVAILABLE
    assert "servable(tiny) method(dying): the worker process that had the request died" in str(
        reply.failure
    )
    await serving.until(lambda: serving.master.control.is_ready)
    assert await serving.outputs("twice", {"x": 4}, {"x": 5}) == [{"y": 8}, {"y": 10}]


async def test_while_the_only_worker_is_away_requests_wait_for_the_next(server, monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY", 60.0)
    await server.deploy(server.deployment(num_parallel_workers=1))
    reply = await server.ask("dying", {"x": 1})  # in two workers
    assert reply.failure.code == Code.WORKER_UNAVAILABLE
    reply = await server.ask("twice", {"x": 1}, timeout=0.2)
    assert reply.failure.code == Code.DEADLINE_EXCEEDED
    assert not server.master.control.is_ready
    (readiness,) = server.master.control.readiness()
    assert (readiness.name, readiness.is_ready) == ("tiny", False)
    assert "restarted (exit status 3)" in readiness.reason
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.01)


async def test_a_worker_that_dies_again_and_again_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(backoff, "MAX_DELAY", 60.0)
    await server.deploy(server.deployment(num_parallel_workers=1))
    monkeypatch.setattr(backoff, "FIRST_DELAY", 7.0)  # doubled from the second on
    server.write("tiny", "os._exit(4)")
    os.kill(int((await server.outputs("pid", {"x": 0}))[0]["y"]), signal.SIGKILL)
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    pending = await server.ask("twice", {"x": 1})
    assert isinstance(pending.failure, ServableUnavailable)
    assert pending.failure.retry_after is not None
    reply = await server.ask("twice", {"x": 1})
    assert isinstance(reply.failure, ServableUnavailable)
    assert "its workers have ended" in str(reply.failure)


async def test_a_deployed_servable_is_ready_until_the_server_stops(server):
    await server.deploy(server.deployment(num_parallel_workers=1))
    (readiness,) = server.master.control.readiness()
    assert (readiness.name, readiness.is_ready, readiness.reason) == ("tiny", True, "")
    await server.master.stop()
    (readiness,) = server.master.control.readiness()
    assert (readiness.is_ready, readiness.reason) == (False, "the server is stopping")


async def test_the_end_of_all_workers_by_a_signal_is_reported(server):
    await server.deploy(server.deployment(num_parallel_workers=1))
    (pid,) = {one["y"] for one in await server.outputs("pid", {"x": 0}, {"x": 0})}
    os.kill(pid, signal.SIGTERM)
    await asyncio.wait_for(server.all_gone.wait(), PATIENCE)
    reply = await server.ask("twice", {"x": 1})
    assert isinstance(reply.failure, ServableUnavailable)
    assert "exit status 0" in str(reply.failure)


# --- ending -------------------------------------------------------------------------------------


async def test_stop_answers_pending_requests_and_kills_hanging_workers(server):
    await server.deploy(server.deployment(num_parallel_workers=1))
    pending = asyncio.create_task(server.ask("hanging", {"x": 1}))
    await server.until(lambda: server.master.dispatcher.num_in_flight)
    await asyncio.wait_for(server.master.stop(grace=0.05), PATIENCE)
    assert str((await pending).failure) == "servable is not available: the server is stopping"
    assert not server.all_gone.is_set()  # it was wanted


async def test_drain_waits_for_pending_requests_but_not_forever(server):
    await server.deploy(server.deployment(num_parallel_workers=1))
    assert await server.master.drain(0.0)
    pending = asyncio.create_task(server.ask("hanging", {"x": 1}))
    await server.until(lambda: server.master.dispatcher.num_in_flight)
    assert not await server.master.drain(0.02)
    drained = asyncio.create_task(server.master.drain(PATIENCE))
    pending.cancel()
    assert await drained
    await server.master.stop(grace=0.05)


async def test_stop_during_a_restart_leaves_no_process_and_no_socket(server):
    before = children()
    await server.deploy(server.deployment(num_parallel_workers=1))
    await server.ask("dying", {"x": 1})
    await server.until(lambda: children() != before)
    await asyncio.wait_for(server.master.stop(grace=5.0), PATIENCE)
    assert children() == before


async def test_stop_may_be_called_again_and_without_workers(server):
    before = children()
    await server.master.stop()
    await server.master.stop()
    assert children() == before


# --- models of other workers ----------------------------------------------------------------------


async def test_a_worker_without_a_device_calls_models_of_a_device_worker(server, monkeypatch):
    monkeypatch.delenv("SERVING_DEVICE_ID", raising=False)  # workers inherit the environment
    server.write("model", WITH_MODEL)
    await server.deploy(
        server.deployment("model", device_type="cpu", device_ids=(0,), num_parallel_workers=2)
    )
    (service,) = server.master.registry
    methods = service.methods
    assert {name: len(method.workers) for name, method in methods.items()} == {
        "staged": 2,
        "called": 2,
        "only_model": 1,  # one hop less
        "@call_add_0": 1,
    }
    owners: set[str] = set()
    num_rows, end = 40, time.monotonic() + PATIENCE  # a batch of 32, and 8
    while owners != {"0", "none"}:  # a worker that is slow to report may get no batch at first
        assert time.monotonic() < end, f"rows were computed by {owners} alone"
        rows = [{"x1": number, "x2": 1} for number in range(num_rows)]
        answers = await server.outputs("staged", *rows, servable="model")
        assert [one["y"] for one in answers] == [2 * (number + 1) for number in range(num_rows)]
        owners |= {one["owner"] for one in answers}
        num_rows = min(2 * num_rows, 10_240)  # more than the window of a worker that is fast
    answers = await server.outputs("called", *[{"x": n} for n in range(4)], servable="model")
    assert [one["y"] for one in answers] == [0, 2, 4, 6]
    assert len({one["pid"] for one in answers}) == 2
    assert "@call_add_0" not in server.master.control.describe()[0]["methods"]
    assert set(server.master.control.signature("model").methods) == {
        "staged",
        "called",
        "only_model",
    }


async def test_extra_workers_are_not_started_if_all_methods_are_models(server):
    only = (
        WITH_MODEL[: WITH_MODEL.index("def double")]
        + WITH_MODEL[
            WITH_MODEL.index('@register.register_method(output_names=["y"])\ndef only_model') :
        ]
    )
    server.write("model", only)
    await server.deploy(
        server.deployment("model", device_type="cpu", device_ids=(0,), num_parallel_workers=3)
    )
    assert server.master.control.describe()[0]["num_workers"] == 1
