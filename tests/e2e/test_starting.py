"""start_servables and stop: what starts, what fails, and what is said then."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving import server
from tests.e2e.harness import HEADER, children, config, is_alive, serving, workers, write_servable
from tests.ports import free_port

ADD = """
@method("z")
def add(x, y):
    return x + y
"""
MODEL = """
model = register.declare_model("gone.onnx", "ONNX")
@register.register_method(output_names=["y"])
def run(x):
    return register.add_stage(model, x, outputs_count=1)
"""
WHO = """
def number(x):
    return NUMBER
@register.register_method(output_names=["n"])
def who(x):
    return register.add_stage(number, x, outputs_count=1)
"""


def failure_of(directory: Path, name: str = "toy", **options: object) -> str:
    """The text of the one error; nothing may be left behind."""
    before = set(children(os.getpid()))
    with pytest.raises(RuntimeError) as caught:
        server.start_servables(config(directory, name, **options))
    assert set(children(os.getpid())) <= before
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_several_servables_and_versions_run_side_by_side(tmp_path):
    write_servable(tmp_path, "add", ADD)
    write_servable(tmp_path, "who", WHO.replace("NUMBER", "os.getpid()"), versions=(1, 3))
    configs = [
        config(tmp_path, "add"),
        *(config(tmp_path, "who", version_number=v) for v in (1, 3)),
    ]
    with serving(tmp_path, *configs) as calls:
        versions = {(s["name"], s["version"]) for s in described(calls)}
        assert versions == {("add", 1), ("who", 1), ("who", 3)}
        pid = {v: int(calls.client("who", "who", v).infer({"x": 1})[0]["n"]) for v in (0, 1, 3)}
        assert pid[0] == pid[3] != pid[1]
        missing = calls.client("who", "who", 2).infer({"x": 1})["error"]
        assert "version(2)" in missing
        assert missing.endswith("servable is not available; versions are 1, 3")
        assert calls.client("add", "add").infer({"x": 1, "y": 2})[0]["z"] == 3


def test_version_0_starts_the_newest_directory(tmp_path):
    write_servable(tmp_path, "toy", ADD, versions=(2, 10, 9))
    with serving(tmp_path, config(tmp_path, "toy")) as calls:
        assert [s["version"] for s in described(calls)] == [10]


def described(calls):
    import json

    return json.loads(calls.http_call("GET", "/servables")[1])["servables"]


@pytest.mark.parametrize(
    ("source", "line", "cause"),
    [
        ("raise ValueError('no such luck')", 1, "no such luck"),
        ("def broken(:\n    pass", 1, "invalid syntax"),
        ("\nimport no_such_module_here", 2, "No module named 'no_such_module_here'"),
        ("import sys\nsys.exit('enough')", 2, "enough"),
        ("\n\nregister.add_stage(1)", 3, "outputs_count"),
    ],
)
def test_a_bad_servable_config_is_an_error_with_file_line_and_cause(stopped, source, line, cause):
    write_servable(stopped, "toy", source)
    text = failure_of(stopped)
    assert text.startswith("Fail to start workers: servable toy, ")
    assert cause in text
    line += HEADER.count("\n")
    assert f"{stopped}/toy/servable_config.py, line {line}" in text
    assert "\n" not in text


def test_a_servable_without_a_method_does_not_start(stopped):
    write_servable(stopped, "toy", "")
    assert "There is no method registered for servable 'toy'" in failure_of(stopped)


def test_a_missing_directory_is_named(stopped):
    text = failure_of(stopped / "nowhere")
    assert f"directory '{stopped}/nowhere" in text
    (stopped / "toy").mkdir()
    assert f"{stopped}/toy/servable_config.py" in failure_of(stopped)


@pytest.mark.onnx
def test_a_missing_model_file_is_named(stopped):
    write_servable(stopped, "toy", MODEL, versions=(1,))
    text = failure_of(stopped)
    assert f"{stopped}/toy/1/gone.onnx" in text


@pytest.mark.onnx
def test_a_missing_version_is_named(stopped):
    write_servable(stopped, "toy", MODEL, versions=(1,))
    assert "specified version number: 5" in failure_of(stopped, version_number=5)


def test_a_worker_that_dies_silently_is_told_with_status_and_last_words(stopped):
    write_servable(stopped, "toy", "print('the disk is on fire', flush=True)\nos._exit(7)")
    text = failure_of(stopped)
    assert "exit status 7" in text
    assert "the disk is on fire" in text


def test_a_worker_that_dies_by_a_signal_is_told_with_its_name(stopped):
    write_servable(stopped, "toy", "os.kill(os.getpid(), 11)")
    assert "SIGSEGV" in failure_of(stopped)


def test_a_bad_servable_among_good_servables_stops_all(stopped):
    write_servable(stopped, "good", ADD)
    write_servable(stopped, "bad", "raise ValueError('bad one')")
    before = set(children(os.getpid()))
    port = free_port()
    server.start_grpc_server(f"127.0.0.1:{port}")
    with pytest.raises(RuntimeError, match="bad one"):
        server.start_servables([config(stopped, "good"), config(stopped, "bad")])
    assert set(children(os.getpid())) <= before
    assert not is_listening(port)


@pytest.mark.parametrize("start", ["start_grpc_server", "start_restful_server"])
def test_a_port_that_is_taken_stops_everything_so_that_the_script_ends(tmp_path, run_script, start):
    write_servable(tmp_path, "toy", ADD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        script = run_script(
            "from mindspore_serving import server\n"
            f"configuration = server.ServableStartConfig({str(tmp_path)!r}, 'toy', 0)\n"
            "server.start_servables(configuration)\n"
            "print('started', flush=True)\n"
            f"server.{start}('127.0.0.1:{port}')\n"
        )
        script.says("started")
        pids = workers(script.pid)
        assert script.status() == 1
    assert f"127.0.0.1:{port}" in script.text
    assert script.text.count('  File "') == 2  # the script's line, and the function it called
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("arguments", [("127.0.0.1:0x",), ("127.0.0.1:1", 0)])
def test_a_server_that_cannot_start_stops_those_that_run(stopped, arguments):
    write_servable(stopped, "toy", ADD)
    before, port = set(children(os.getpid())), free_port()
    server.start_servables(config(stopped, "toy"))
    server.start_grpc_server(f"127.0.0.1:{port}")
    with pytest.raises(RuntimeError):
        server.start_restful_server(*arguments)
    assert set(children(os.getpid())) <= before
    assert not is_listening(port)


@pytest.mark.parametrize("end", ["", "raise SystemExit", "server.stop()"])
def test_a_script_that_only_listens_ends_without_a_word(run_script, end):
    script = run_script(
        "from mindspore_serving import server\n"
        f"server.start_grpc_server('127.0.0.1:{free_port()}')\n"
        f"server.start_restful_server('127.0.0.1:{free_port()}')\n{end}\n"
    )
    assert script.status() == 0
    assert [line for line in script.lines if "start success" not in line] == []


def test_starting_twice_is_refused_and_leaves_the_first_running(tmp_path):
    write_servable(tmp_path, "toy", ADD)
    with serving(tmp_path, config(tmp_path, "toy")) as calls:
        with pytest.raises(RuntimeError, match="Master server is already running"):
            server.start_servables(config(tmp_path, "toy"))
        with pytest.raises(RuntimeError, match="Serving gRPC server is already running"):
            server.start_grpc_server(f"127.0.0.1:{free_port()}")
        with pytest.raises(RuntimeError, match="RESTful server is already running"):
            server.start_restful_server(f"127.0.0.1:{free_port()}")
        assert calls.client("toy", "add").infer({"x": 1, "y": 2})[0]["z"] == 3


def test_a_server_restarts_after_stop_on_the_same_ports(stopped):
    write_servable(stopped, "toy", ADD)
    ports = free_port(), free_port()
    for _ in range(2):
        server.start_servables(config(stopped, "toy"))
        server.start_grpc_server(f"127.0.0.1:{ports[0]}")
        server.start_restful_server(f"127.0.0.1:{ports[1]}")
        pids = workers(os.getpid())
        assert pids
        assert all(map(is_listening, ports))
        server.stop()
        assert not any(map(is_listening, ports))
        assert not any(map(is_alive, pids))


def test_a_server_starts_after_a_failed_start(stopped):
    write_servable(stopped, "bad", "raise ValueError('bad one')")
    write_servable(stopped, "toy", ADD)
    failure_of(stopped, "bad")
    with serving(stopped, config(stopped, "toy")) as calls:
        assert calls.client("toy", "add").infer({"x": 1, "y": 2})[0]["z"] == 3


def test_stop_is_harmless_when_nothing_runs(stopped):
    server.stop()
    server.stop()


def test_front_ends_may_start_first_and_answer_before_any_servable(stopped):
    write_servable(stopped, "toy", ADD)
    from tests.e2e.harness import Calls

    calls = Calls(f"127.0.0.1:{free_port()}", free_port())
    server.start_grpc_server(calls.grpc)
    server.start_restful_server(f"127.0.0.1:{calls.http}")
    error = calls.client("toy", "add").infer({"x": 1, "y": 2})["error"]
    assert "Request servable(toy) method(add), servable is not available" in error
    assert calls.post("toy", "add", {"x": 1, "y": 2}) == {"error_msg": error}
    server.start_servables(config(stopped, "toy"))
    assert calls.client("toy", "add").infer({"x": 1, "y": 2})[0]["z"] == 3
    calls.close()


def test_a_path_with_spaces_and_other_letters_works(tmp_path):
    directory = tmp_path / "my models ü"
    directory.mkdir()
    write_servable(directory, "toy", ADD)
    with serving(directory, config(directory, "toy")) as calls:
        client = calls.client("toy", "add")
        (result,) = client.infer({"x": np.float32([1, 2]), "y": np.float32([10, 20])})
        np.testing.assert_array_equal(result["z"], np.float32([11, 22]))
        assert calls.post("toy", "add", {"x": 1, "y": 2}) == {"instances": [{"z": 3}]}


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
