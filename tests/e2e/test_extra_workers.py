"""Workers without a device: they run Python stages and have models run by the one that owns it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving import log, server
from tests.e2e.harness import Calls, config, eventually, is_alive, serving, workers, write_servable
from tests.waiting import PATIENCE

SOURCE = """
while os.path.exists("hold"):  # a worker that loads
    time.sleep(0.005)

def where(x):
    if os.path.exists("hang"):
        open("hanging", "w").close()
        while os.path.exists("hang"):
            time.sleep(0.005)
    rows = x.shape[0]
    return x + np.float32(1), np.full((rows, 1), os.getpid(), np.int64)

from mindspore_serving.core.value import Signature, TensorSpec
where.signature = Signature(
    (TensorSpec("x", np.dtype("float32"), (4, 2)),),
    (TensorSpec("y", np.dtype("float32"), (4, 2)), TensorSpec("pid", np.dtype("int64"), (4, 1))),
)
model = register.declare_model(where, "Python", with_batch_dim=True)

def before(x):
    time.sleep(0.002)
    return x * np.float32(2), os.getpid()
@register.register_method(output_names=["y", "device", "pid"])
def staged(x):
    x, pid = register.add_stage(before, x, outputs_count=2)
    y, device = register.add_stage(model, x, outputs_count=2)
    return y, device, pid

@method("y", "device", "pid")
def called(x):
    y, device = model.call(x)
    return y, device, os.getpid()

@method("y", "pid")
def called_often(x):
    results = model.call([[x + np.float32(n)] for n in range(10)])
    return np.stack([y for y, _ in results]), os.getpid()

@method("pid")
def pid(x):
    time.sleep(0.002)
    return os.getpid()

@register.register_method(output_names=["y", "device"])
def only_model(x):
    return register.add_stage(model, x, outputs_count=2)
"""
X = np.float32([1, 2])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("extra")
    write_servable(place, "toy", SOURCE, versions=(1,))
    one = config(place, "toy", device_ids=0, num_parallel_workers=3, device_type="CPU")
    with serving(place, one) as calls:
        yield calls


@pytest.fixture
def calls(served):
    """With all three workers."""
    eventually(lambda: served.http_call("GET", "/health")[0] == 200)
    eventually(lambda: len(workers(os.getpid())) == 3)
    Path("hanging").unlink(missing_ok=True)
    return served


def ask(calls: Calls, method: str, count: int = 1) -> list[dict]:
    return calls.client("toy", method).infer([{"x": X} for _ in range(count)])


def test_all_workers_run_functions_and_only_the_device_runs_the_model(calls):
    assert len(workers(os.getpid())) == 3
    for method, factor in (("staged", 2), ("called", 1)):
        results = eventually(lambda method=method: spread(ask(calls, method, 60)))
        devices = {int(r["device"][0]) for r in results}
        assert len(devices) == 1
        assert devices < {int(r["pid"]) for r in results} == set(workers(os.getpid()))
        for result in results:
            np.testing.assert_array_equal(result["y"], X * factor + 1)


def spread(results: list[dict]) -> list[dict] | None:
    """`results` if every worker had some."""
    return results if len({int(r["pid"]) for r in results}) == 3 else None


@pytest.mark.parametrize("method", ["staged", "called"])
def test_each_worker_logs_the_time_of_its_requests(calls, method):
    names = ("device0", "extra0", "extra1")
    logs = [Path("serving_logs") / f"log_toy_{name}_version1.log" for name in names]
    line, level = f"Method {method} WorkerRequestHandle Time Cost # ", str(int(log.get_level()))
    log.set_level("1")
    try:
        counts = [path.read_text().count(line) for path in logs]

        def have_logged() -> bool:
            ask(calls, method, 60)
            now = [path.read_text().count(line) for path in logs]
            return all(count > before for count, before in zip(now, counts, strict=True))

        eventually(have_logged)
    finally:
        log.set_level(level)


def test_a_model_called_with_many_instances_answers_each(calls):
    results = ask(calls, "called_often", 12)
    assert len(results) == 12
    for result in results:
        np.testing.assert_array_equal(result["y"], [X + n + 1 for n in range(10)])


def test_a_method_of_models_alone_goes_to_the_device(calls):
    (result,) = ask(calls, "only_model")
    np.testing.assert_array_equal(result["y"], X + 1)


@pytest.mark.parametrize("method", ["staged", "called"])
def test_inputs_that_do_not_fit_the_model_fail_alone(calls, method):
    good, bad = {"x": X}, {"x": np.float32([1, 2, 3])}
    results = calls.client("toy", method).infer([good, bad, good])
    assert ["error" in result for result in results] == [False, True, False]
    assert "size 12 not match the size 8 defined in model" in results[1]["error"]


def test_requests_of_a_killed_device_worker_are_answered_by_the_next(calls):
    device = int(ask(calls, "staged")[0]["device"][0])
    Path("hang").touch()
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(ask, calls, m) for m in ("staged", "called") for _ in range(6)]
        eventually(lambda: Path("hanging").exists())
        Path("hold").touch()  # the next worker cannot load yet
        os.kill(device, signal.SIGKILL)
        eventually(lambda: not is_alive(device))
        Path("hang").unlink()
        Path("hold").unlink()
        answers = [future.result(PATIENCE) for future in waiting]
    devices = {int(answer[0]["device"][0]) for answer in answers}
    assert len(devices) == 1
    assert device not in devices
    eventually(lambda: len(workers(os.getpid())) == 3)


def test_without_a_device_worker_functions_go_on(calls):
    """Extras answer what needs no model, before the device is back."""
    device = int(ask(calls, "staged")[0]["device"][0])
    os.kill(device, signal.SIGKILL)
    assert "error" not in ask(calls, "pid")[0]
    eventually(lambda: "error" not in str(ask(calls, "staged")))


def test_a_killed_extra_worker_is_replaced_and_has_models_run_again(calls):
    device = int(ask(calls, "staged")[0]["device"][0])
    extra = next(pid for pid in workers(os.getpid()) if pid != device)
    os.kill(extra, signal.SIGKILL)
    eventually(lambda: not is_alive(extra))
    eventually(lambda: calls.http_call("GET", "/health")[0] == 200)
    results = eventually(lambda: spread(ask(calls, "called", 60)))
    assert {int(r["device"][0]) for r in results} == {device}


# The last one, as it stops the server of all.
def test_stop_while_extras_wait_for_the_device_ends_all(calls):
    Path("hang").touch()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, calls, method) for method in ("staged", "called")]
        eventually(lambda: Path("hanging").exists())
        stopping = pool.submit(server.stop)
        for future in waiting:
            assert "error" in future.result(PATIENCE)
        Path("hang").unlink()
        stopping.result(PATIENCE)
    assert not workers(os.getpid())
