"""`mindspore-serving serve` as a process: what it finds, what it says, and how it ends."""

import json
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mindspore_serving.client import Client
from tests.cli.commands import SERVING, Command, call, run
from tests.cli.conftest import write_good_and_bad, write_onnx, write_words
from tests.e2e.harness import eventually, is_alive, workers
from tests.ports import free_port
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e
READY = "Ctrl-C stops"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def serve(directory: Path, *words: str) -> Command:
    return Command([*SERVING, "serve", *words], directory)


def line_with(command: Command, words: str) -> str:
    return next(line.strip() for line in command.lines if words in line)


@needs_curl
def test_serve_prints_methods_with_a_curl_line_that_works(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    with serve(tmp_path, ".", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        assert "words, version 1, 1 worker\n" in command.text
        assert "  joined(left, right) -> text\n" in command.text
        assert f"REST  http://127.0.0.1:{port}" in command.text
        words = shlex.split(line_with(command, f"curl http://127.0.0.1:{port}/model/words:double"))
        done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == {"instances": [{"y": 2.0}]}


MODELS = """
import numpy as np
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.server import register

def declare(name, dtype, shape):
    def total(x):
        return x.reshape(len(x), -1).sum(axis=1)

    total.__name__ = f"total_{name}"
    total.signature = Signature(
        (TensorSpec("x", np.dtype(dtype), (-1, *shape)),),
        (TensorSpec("y", np.dtype(dtype), (-1,)),),
    )
    model = register.declare_model(total, model_format="Python")

    def method(x):
        return register.add_stage(model, x, outputs_count=1)

    method.__name__ = name
    register.register_method(output_names=["y"])(method)

declare("floats", "float32", (3,))
declare("integers", "int64", (2, 2))
declare("image", "float16", (3, 32, 32))
"""


@needs_curl
def test_the_printed_curl_lines_fit_the_models(tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "servable_config.py").write_text(MODELS)
    with serve(tmp_path, "sums", "--http-port", str(free_port()), "--no-grpc") as command:
        command.says(READY)
        for method, total in (("floats", 3.0), ("integers", 4), ("image", 3072.0)):
            line = line_with(command, f"/model/sums:{method} ")
            done = run(["bash", "-c", f"{line} -s"], tmp_path)
            assert json.loads(done.stdout) == {"instances": [{"y": total}]}


@pytest.mark.onnx
def test_a_bare_model_is_served_beside_a_servable_with_a_configuration(tmp_path: Path) -> None:
    write_words(tmp_path / "models")
    write_onnx(tmp_path / "models" / "subtract" / "2" / "model.onnx")
    ports = ["--http-port", str(free_port()), "--grpc-port", str(free_port())]
    with serve(tmp_path, "models", *ports) as command:
        command.says(READY)
        assert "  subtract  version 2 loaded" in command.text
        assert "  predict(a, b) -> difference\n" in command.text
        a, b = np.array([5, 6, 7], np.float32), np.array([1, 2, 4], np.float32)
        with Client(f"127.0.0.1:{ports[3]}", "subtract", "predict") as client:
            (result,) = client.infer({"a": a, "b": b})
        assert result["difference"].tolist() == [4, 4, 3]
        with Client(f"127.0.0.1:{ports[3]}", "words", "joined") as client:
            assert client.infer({"left": "a", "right": "b"}) == [{"text": "a b"}]


@pytest.mark.onnx
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_libraries_of_models_keep_no_identity_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """They make one there, to send what they saw to their makers under it."""
    pytest.importorskip(backend)
    write_onnx(tmp_path / "models" / "subtract" / "1" / "model.onnx")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    options = ["--backend", backend, "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "models", *options) as command:
        command.says(READY)
        assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.onnx
def test_a_model_that_cannot_be_served_is_named_and_keeps_no_other_down(tmp_path: Path) -> None:
    write_good_and_bad(tmp_path / "models")
    port = str(free_port())
    with serve(tmp_path, "models", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        assert "Not served: scaler: 1/model.pkl is a pickle: loading it runs any" in command.text
        assert "Not served: cut: " in line_with(command, "cut/net.onnx', model format: onnx")
        assert "Not served: typo: " in line_with(command, "No module named 'no_such_library'")
        assert "words, version 1, 1 worker\n" in command.text
        with urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.status == 200
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            page = answer.read().decode()
        for row in (
            '"cut",version="0"} 1.0',
            '"typo",version="0"} 1.0',
            '"words",version="1"} 0.0',
        ):
            assert f"serving_load_failed{{servable={row}\n" in page, page
        words = ["predict", f"http://127.0.0.1:{port}", "words", "double"]
        done = call([*words, '{"x": 2}'], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"y": 4}]}


@pytest.mark.onnx
def test_a_path_that_cannot_be_served_is_named_and_keeps_no_other_down(tmp_path: Path) -> None:
    write_words(tmp_path)
    write_onnx(tmp_path / "old" / "1" / "model.onnx")
    for name, content in {"scaler.pkl": b"\x80\x04N.", "net.jit": b"<p>", "readme": b"!"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    paths = ["scaler.pkl", "words", "net.jit", "readme", "empty", "my model.onnx"]
    shutil.copy(tmp_path / "old" / "1" / "model.onnx", tmp_path / "my model.onnx")
    port = str(free_port())
    with serve(tmp_path, *paths, "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        for words in (
            "scaler: scaler.pkl is a pickle",
            f"net: '{tmp_path}/net.jit' is not a known model file",
            "readme: ",
            f"empty: There is no servable in '{tmp_path}/empty'",
            "my model: ",
        ):
            assert f"Not served: {words}" in command.text
        with urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.status == 200
        done = call(["models", f"127.0.0.1:{port}", "--json"], tmp_path)
        states = {row["name"]: (row["state"], row["reason"]) for row in json.loads(done.stdout)}
        assert states["words"] == ("READY", "")
        assert states["scaler"][0] == "UNAVAILABLE"
        assert "--allow-pickle" in states["scaler"][1]
        assert states.keys() >= {"words", "scaler", "net", "readme", "empty", "my model"}


def test_versions_that_a_servable_lacks_do_not_affect_the_rest(tmp_path: Path) -> None:
    write_words(tmp_path)
    write_onnx(tmp_path / "net" / "2" / "model.onnx")
    options = ["--versions", "2", "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "words", "net", *options) as command:
        command.says(READY)
        assert "Not served: words: --versions 2 selects none of servable words" in command.text
        assert "net, version 2" in command.text


def write_swap(path: Path) -> None:
    """A bare model: y is x, a matrix of any size, with its axes exchanged."""
    onnx = pytest.importorskip("onnx", reason="it writes the model")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("Transpose", ["x"], ["y"])],
        "swap",
        [make.make_tensor_value_info("x", number, ["M", 3])],
        [make.make_tensor_value_info("y", number, [3, "M"])],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.onnx
def test_an_error_of_a_model_without_batch_axis_names_the_option(
    tmp_path: Path,
) -> None:
    write_words(tmp_path)
    write_swap(tmp_path / "swap.onnx")
    port = str(free_port())
    paths = ["words", "swap.onnx", "--batch-dim"]
    with serve(tmp_path, *paths, "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        assert "Not served: swap: " in line_with(command, "serve --no-batch-dim")
        assert "/model/swap:predict" not in command.text  # no call that would fail


@needs_curl
@pytest.mark.onnx
def test_without_batch_dim_the_printed_call_has_whole_arrays_and_works(tmp_path: Path) -> None:
    write_swap(tmp_path / "swap.onnx")
    options = ["--log-level", "info", "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "swap.onnx", *options) as command:
        command.says(READY)
        assert "'M' is the first of input 'x', but number 2" in line_with(command, "batch: none")
        done = run([*shlex.split(line_with(command, "/model/swap:predict")), "-s"], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"y": [[1], [1], [1]]}]}
        where = f"http://127.0.0.1:{options[3]}"
        body = '{"x": [[1, 2, 3], [4, 5, 6]]}'
        done = call(["predict", where, "swap", "predict", body], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"y": [[1, 4], [2, 5], [3, 6]]}]}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_served_whatever_its_ending_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, rate: int, gain: float = 0.5) -> torch.Tensor:
            return x * rate * gain

    scripted = torch.jit.script(torch.nn.Hardtanh(0.0, 6.0))
    for name in ("net.jit", "copy.saved"):
        torch.jit.save(scripted, tmp_path / name)
    torch.jit.save(torch.jit.script(Scale()), tmp_path / "scale.jit")
    port = str(free_port())
    files = ["net.jit", "copy.saved", "scale.jit"]
    with serve(tmp_path, *files, "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        done = run(shlex.split(line_with(command, "/model/scale:predict")), tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"output0": 0.5}]}
        words = ["predict", f"http://127.0.0.1:{port}", "scale", "predict"]
        done = call([*words, '{"x": [1, 3], "rate": 4, "gain": 1.5}'], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"output0": [6, 18]}]}
        for name in ("net", "copy"):
            words = ["predict", f"http://127.0.0.1:{port}", name, "predict"]
            done = call([*words, '{"input": [-2.5, 4.5, 9.5]}'], tmp_path)
            assert list(json.loads(done.stdout)["instances"][0].values()) == [[0.0, 4.5, 6.0]]


@pytest.mark.onnx
def test_a_model_file_is_served_under_its_name_without_the_ending(tmp_path: Path) -> None:
    write_onnx(tmp_path / "files" / "subtract.v2.onnx")
    port = str(free_port())
    with serve(tmp_path, "files/subtract.v2.onnx", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        where = [f"http://127.0.0.1:{port}", "subtract.v2", "predict"]
        instance = json.dumps({"a": [5.5, 6.5, 7.5], "b": [1.5, 2.5, 4.5]})
        done = call(["predict", *where, instance], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"difference": [4, 4, 3]}]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serve_and_its_workers_with_status_0(tmp_path: Path, number: int) -> None:
    write_words(tmp_path)
    options = ["--num-parallel-workers", "2", "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "words", *options) as command:
        command.says(READY)
        assert "words, version 1, 2 workers\n" in command.text
        pids = workers(command.pid)
        assert len(pids) == 2
        command.send(signal.Signals(number))
        assert command.status() == 0
        assert command.lines[-1] == "Stopped.\n"
        assert eventually(lambda: not any(map(is_alive, pids)))


def test_a_port_in_use_is_told_before_any_model_is_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    with serve(tmp_path, "words", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        done = run([*SERVING, "serve", "words", "--http-port", port, "--no-grpc"], tmp_path)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} failed" in done.stderr
    assert "loaded" not in done.stdout


def test_serve_ends_with_status_1_when_all_workers_have_ended(tmp_path: Path) -> None:
    write_words(tmp_path)
    options = ["--http-port", str(free_port()), "--no-grpc", "--restart-policy", "limited"]
    with serve(tmp_path, "words", *options) as command:
        command.says(READY)
        (tmp_path / "words" / "servable_config.py").write_text("raise SystemExit('gone')")
        for pid in workers(command.pid):
            subprocess.run(["kill", "-9", str(pid)], check=True)
        assert command.status(PATIENCE) == 1
    assert "every worker has ended" in command.text


def test_a_signal_while_models_load_ends_serve_and_its_workers(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "servable_config.py").write_text(
        f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    with serve(tmp_path, "slow", "--http-port", str(free_port()), "--no-grpc") as command:
        eventually((tmp_path / "begun").exists)
        pids = workers(command.pid)
        command.send(signal.SIGINT)
        assert command.status() != 0
        assert eventually(lambda: not any(map(is_alive, pids)))
    assert "Ready" not in command.text


@pytest.mark.parametrize("front_ends", ["1", "2"])
def test_a_shared_port_speaks_every_protocol(tmp_path: Path, front_ends: str) -> None:
    write_words(tmp_path)
    port = free_port()
    with serve(tmp_path, "words", "--port", str(port), "--front-ends", front_ends) as command:
        command.says(READY)
        assert f"  REST  http://127.0.0.1:{port}" in command.text
        assert f"  gRPC  127.0.0.1:{port}\n" in command.text
        with Client(f"127.0.0.1:{port}", "words", "double") as client:
            assert client.infer({"x": 4})[0]["y"] == 8
        for has_http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
            with httpx.Client(http1=not has_http2, http2=has_http2, timeout=PATIENCE) as http:
                answer = http.get(f"http://127.0.0.1:{port}/readyz")
            assert (answer.http_version, answer.status_code) == (version, 200)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            reply = check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
