"""What the server tells of itself, and HTTP status codes."""

import json
import os
import signal
import threading
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving import server
from tests.e2e.harness import Calls, eventually, workers
from tests.ports import free_port
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2

@method("y")
def wait(x):
    with open("calls.txt", "a") as file:
        file.write(f"{int(x)}\\n")
    end = time.monotonic() + 300
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.005)
    return x
"""


def go() -> None:
    Path("go").touch()


def test_servables_are_ready_by_name_over_http_and_grpc(serve):
    calls = serve(SOURCE)
    status, body = calls.http_call("GET", "/readyz?servable=toy")
    assert (status, json.loads(body)["servables"]) == (
        200,
        [{"name": "toy", "version": 1, "ready": True, "reason": ""}],
    )
    assert calls.http_call("GET", "/readyz?servable=other")[0] == 404
    with grpc.insecure_channel(calls.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "toy"):
            reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_health_servables_and_metrics_report_the_state(serve):
    calls = serve(SOURCE, num_parallel_workers=2)
    assert calls.http_call("GET", "/health") == (200, b"ready")
    ((one,),) = json.loads(calls.http_call("GET", "/servables")[1]).values()
    assert (one["name"], one["version"], one["num_workers"]) == ("toy", 1, 2)
    assert one["methods"]["double"] == {
        "inputs": ["x"],
        "outputs": ["y"],
        "input_specs": [
            {"name": "x", "dtype": None, "shape": None, "example": {"value": 1.0, "shape": []}}
        ],
        "output_specs": [{"name": "y", "dtype": None, "shape": None}],
    }
    for _ in range(3):
        calls.client("toy", "double").infer({"x": 1})
    calls.client("toy", "double").infer({"y": 1})
    text = calls.http_call("GET", "/metrics")[1].decode()
    samples = {
        (sample.name, tuple(sample.labels.get(k) for k in ("servable", "method", "code"))): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["serving_requests_total", ("toy", "double", "ok")].value == 3
    assert samples["serving_requests_total", ("toy", "double", "invalid_inputs")].value == 1
    assert samples["serving_request_seconds_count", ("toy", "double", None)].value == 4
    assert samples["serving_workers", ("toy", None, None)].value == 2
    assert samples["serving_requests_waiting", ("toy", None, None)].value == 0


def test_health_is_not_ready_before_anything_is_deployed(stopped):

    port = free_port()
    server.start_restful_server(f"127.0.0.1:{port}")
    assert Calls("", port).http_call("GET", "/health") == (503, b"not ready")


def test_use_status_codes_tells_errors_by_the_status(tmp_path):
    from tests.e2e.harness import config, serving, write_servable

    write_servable(tmp_path, "toy", SOURCE)
    with serving(tmp_path, config(tmp_path, "toy"), use_status_codes=True) as calls:
        body = '{"instances":{"x":1}}'
        paths = ("/model/toy:double", "/model/nobody:double", "/model/toy:nothing", "/elsewhere")
        statuses = [calls.http_call("POST", path, body)[0] for path in paths]
        assert statuses == [200, 404, 404, 404]
        assert calls.http_call("POST", "/model/toy:double", "{")[0] == 400
        timeout = {"X-Request-Timeout": "0.1"}
        assert calls.http_call("POST", "/model/toy:wait", body, timeout)[0] == 504
        go()


def test_arrays_of_other_byte_orders_and_strides_are_sent_right(serve):
    calls = serve(SOURCE)
    x = np.arange(12, dtype=">f4").reshape(3, 4).T[::2]
    np.testing.assert_array_equal(calls.client("toy", "double").infer({"x": x})[0]["y"], x * 2)


def test_threads_share_a_client(serve):
    calls = serve(SOURCE)
    client, wrong = calls.client("toy", "double"), []

    def run(number: int) -> None:
        for _ in range(20):
            if client.infer({"x": number})[0]["y"] != 2 * number:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong


def test_counters_go_on_when_a_worker_dies_and_its_restart_is_counted(serve):
    calls = serve(SOURCE)
    toy = calls.client("toy", "double")
    for _ in range(3):
        toy.infer({"x": 1})
    assert value(calls, "serving_batch_size_count") == 3
    (pid,) = workers(os.getpid())
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: value(calls, "serving_worker_restarts_total") == 1, what="a restart")
    assert value(calls, "serving_batch_size_count") == 3
    assert toy.infer({"x": 1}) == [{"y": 2}]
    assert value(calls, "serving_batch_size_count") == 4
    assert value(calls, "serving_ready") == 1


def value(calls: Calls, name: str) -> float:
    """Of the only sample called `name`."""
    text = calls.http_call("GET", "/metrics")[1].decode()
    (found,) = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return float(found.rpartition(" ")[2])
