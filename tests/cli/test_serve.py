"""`mindspore-serving serve` as a process: what it finds, what it says, and how it ends."""

import json
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from mindspore_serving.client import Client, SSLConfig
from tests.cli.commands import SERVING, Command, run
from tests.cli.conftest import write_onnx, write_words
from tests.e2e.harness import eventually, is_alive, workers
from tests.e2e.test_tls import Authority
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


def write_good_and_bad(directory: Path) -> None:
    """The servable "words", a pickle, an ONNX file that is none, and one with a typing error."""
    write_words(directory)
    for place, content in {"scaler/1/model.pkl": b"\x80\x04N.", "cut/net.onnx": b"cut"}.items():
        (directory / place).parent.mkdir(parents=True)
        (directory / place).write_bytes(content)
    (directory / "typo").mkdir()
    (directory / "typo" / "servable_config.py").write_text("from no_such_library import x\n")


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
        words = [*SERVING, "predict", f"http://127.0.0.1:{port}", "words", "double"]
        done = run([*words, '{"x": 2}'], tmp_path)
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
        done = run([*SERVING, "models", f"127.0.0.1:{port}", "--json"], tmp_path)
        states = {row["name"]: (row["state"], row["reason"]) for row in json.loads(done.stdout)}
        assert states["words"] == ("READY", "")
        assert states["scaler"][0] == "UNAVAILABLE"
        assert "--allow-pickle" in states["scaler"][1]
        assert states.keys() >= {"words", "scaler", "net", "readme", "empty", "my model"}


@pytest.mark.parametrize("paths", [["scaler.pkl"], ["scaler.pkl", "net.jit"]])
def test_where_no_path_can_be_served_each_is_named_with_status_1(tmp_path: Path, paths) -> None:
    (tmp_path / "scaler.pkl").write_bytes(b"\x80\x04N.")
    (tmp_path / "net.jit").write_bytes(b"<p>")
    done = run([*SERVING, "serve", *paths, "--no-grpc"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert [one for one in paths if one not in done.stderr] == []


def test_a_missing_path_ends_serve_before_models_are_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = run([*SERVING, "serve", "words", "wrods", "--no-grpc"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no file or directory" in done.stderr
    assert "did you mean 'words'?" in done.stderr


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
        done = run([*SERVING, "predict", where, "swap", "predict", body], tmp_path)
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
        call = [*SERVING, "predict", f"http://127.0.0.1:{port}", "scale", "predict"]
        done = run([*call, '{"x": [1, 3], "rate": 4, "gain": 1.5}'], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"output0": [6, 18]}]}
        for name in ("net", "copy"):
            call = [*SERVING, "predict", f"http://127.0.0.1:{port}", name, "predict"]
            done = run([*call, '{"input": [-2.5, 4.5, 9.5]}'], tmp_path)
            assert list(json.loads(done.stdout)["instances"][0].values()) == [[0.0, 4.5, 6.0]]


def test_with_json_logs_all_complaints_are_json(tmp_path: Path) -> None:
    write_good_and_bad(tmp_path / "models")
    options = ["--log-format", "json", "--host", "0.0.0.0", "--limit", "head_timeout=0"]
    done = run([*SERVING, "serve", "models", *options], tmp_path)
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [(line["level"], line["message"]) for line in lines]
    for level, words in (
        ("ERROR", "Not served: scaler: "),
        ("WARNING", "WARNING: listening on 0.0.0.0 without TLS"),
        ("ERROR", "mindspore-serving: head_timeout is 0, expected"),
    ):
        assert any(found == level and text.startswith(words) for found, text in told), told


def test_a_variable_of_the_log_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_words(tmp_path)
    monkeypatch.setenv("MINDSPORE_SERVING_LOG_LEVEL", "loud")
    done = run([*SERVING, "serve", "words"], tmp_path)
    expected = "MINDSPORE_SERVING_LOG_LEVEL should be one of debug, info, warning, error, but it is"
    assert (done.returncode, done.stderr) == (2, f"mindspore-serving: {expected} 'loud'\n")


def test_with_strict_everything_is_served_or_nothing(tmp_path: Path) -> None:
    write_good_and_bad(tmp_path / "models")
    options = ["--http-port", str(free_port()), "--no-grpc", "--strict"]
    done = run([*SERVING, "serve", "models", *options], tmp_path)
    assert done.returncode == 1
    assert "Not served, and --strict is given: scaler: 1/model.pkl is a pickle" in done.stderr
    done = run([*SERVING, "serve", "models/words", "models/typo", *options], tmp_path)
    assert done.returncode == 1
    assert "no_such_library" in done.stderr
    assert "Ready" not in done.stdout


@pytest.mark.onnx
def test_a_model_file_is_served_under_its_name_without_the_ending(tmp_path: Path) -> None:
    write_onnx(tmp_path / "files" / "subtract.v2.onnx")
    port = str(free_port())
    with serve(tmp_path, "files/subtract.v2.onnx", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        where = [f"http://127.0.0.1:{port}", "subtract.v2", "predict"]
        instance = json.dumps({"a": [5.5, 6.5, 7.5], "b": [1.5, 2.5, 4.5]})
        done = run([*SERVING, "predict", *where, instance], tmp_path)
        assert json.loads(done.stdout) == {"instances": [{"difference": [4, 4, 3]}]}


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["serve", "words", "--htp-port", "1"], "--htp-port 1; did you mean '--http-port'?"),
        (["serve", "wrods"], "did you mean 'words'?"),
        (["serve", "words", "--limit", "head-timeut=1"], "did you mean 'head_timeout'?"),
    ],
)
def test_for_nearly_the_name_of_an_option_or_file_the_name_is_proposed(
    tmp_path, words, near
) -> None:
    write_words(tmp_path)
    done = run([*SERVING, *words, "--no-grpc"], tmp_path)
    assert done.returncode in (1, 2)
    assert near in done.stderr


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


def test_an_empty_directory_is_an_error_that_names_known_files(tmp_path: Path) -> None:
    (tmp_path / "empty" / "thing" / "1").mkdir(parents=True)
    done = run([*SERVING, "serve", "empty"], tmp_path)
    assert done.returncode == 1
    assert f"There is no servable in '{tmp_path}/empty'" in done.stderr
    assert "servable_config.py" in done.stderr
    assert "1/model.onnx" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told_before_any_model_is_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    with serve(tmp_path, "words", "--http-port", port, "--no-grpc") as command:
        command.says(READY)
        done = run([*SERVING, "serve", "words", "--http-port", port, "--no-grpc"], tmp_path)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} failed" in done.stderr
    assert "loaded" not in done.stdout


def test_a_servable_that_cannot_be_imported_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "servable_config.py").write_text("x = 1\nimport no_such_library\n")
    done = run([*SERVING, "serve", ".", "--http-port", str(free_port()), "--no-grpc"], tmp_path)
    assert done.returncode == 1
    assert "no_such_library" in done.stderr
    assert f"{tmp_path}/broken/servable_config.py, line 2" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_listening_to_every_network_without_tls_is_warned_of(tmp_path: Path) -> None:
    write_words(tmp_path)
    options = ["--host", "0.0.0.0", "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "words", *options) as command:
        command.says(READY)
        assert "WARNING: listening on 0.0.0.0 without TLS" in command.text


@needs_curl
def test_the_status_tells_of_errors_if_asked_to(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    with serve(tmp_path, "words", "--http-port", port, "--no-grpc", "--http-status-codes") as one:
        one.says(READY)
        url = f"http://127.0.0.1:{port}/model/words:no_such_method"
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url, "-d", "{}"]
        assert run(words, tmp_path).stdout == "404"


@needs_curl
def test_limits_are_those_that_were_given(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    options = ["--http-port", port, "--no-grpc", "--limit", "max_headers=1"]
    with serve(tmp_path, "words", *options) as one:
        one.says(READY)
        done = run(["curl", "-s", f"http://127.0.0.1:{port}/health"], tmp_path)
        assert done.stdout == (
            "The number of headers is over 1; --limit max_headers=NUMBER of the server sets it."
        )


@needs_curl
@pytest.mark.parametrize("place", ["a file", "the environment", "the command line"])
def test_keys_come_from_a_file_the_environment_or_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write_words(tmp_path)
    key, port = "a-key-that-is-long-enough", str(free_port())
    options = ["--http-port", port, "--no-grpc"]
    if place == "a file":
        (tmp_path / "keys").write_text(f"{key} Anna\n")
        (tmp_path / "keys").chmod(0o600)
        options += ["--api-key-file", "keys"]
    elif place == "the environment":
        monkeypatch.setenv("MINDSPORE_SERVING_API_KEYS", f"another-long-key {key}")
    else:
        options += ["--api-key", key]
    with serve(tmp_path, "words", *options) as one:
        one.says(READY)
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
        words.append(f"http://127.0.0.1:{port}/servables")
        assert run(words, tmp_path).stdout == "401"
        assert run([*words, "-H", f"Authorization: Bearer {key}"], tmp_path).stdout == "200"


@needs_curl
def test_a_loopback_server_refuses_unknown_host_names_and_origins(
    tmp_path: Path,
) -> None:
    write_words(tmp_path)
    port = str(free_port())
    options = ["--http-port", port, "--no-grpc", "--allowed-host", "serving.example"]
    with serve(tmp_path, "words", *options) as one:
        one.says(READY)
        url = f"http://127.0.0.1:{port}/model/words:double"
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url]
        words += ["-d", '{"instances":[{"x":1}]}', "-H"]
        for header, status in (
            ("X: y", "200"),
            ("Host: serving.example", "200"),
            ("Host: other.example", "403"),
            ("Origin: https://other.example", "403"),
        ):
            assert run([*words, header], tmp_path).stdout == status, header


def test_with_tls_both_protocols_want_certificates_and_predict_has_them(tmp_path: Path) -> None:
    write_words(tmp_path)
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    client_certificate, client_key = authority.issue("client")
    http, grpc = str(free_port()), str(free_port())
    options = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", authority.ca]
    ports = ["--http-port", http, "--grpc-port", grpc]
    with serve(tmp_path, "words", *ports, *options) as command:
        command.says(READY)
        assert f"REST  https://127.0.0.1:{http}" in command.text
        call = ["words", "double", '{"x": 4}', "--tls-ca", authority.ca]
        with_certificate = [*call, "--tls-cert", client_certificate, "--tls-key", client_key]
        for where in (f"https://127.0.0.1:{http}", f"127.0.0.1:{grpc}"):
            good = run([*SERVING, "predict", where, *with_certificate], tmp_path)
            assert json.loads(good.stdout) == {"instances": [{"y": 8}]}, good.stderr
            assert run([*SERVING, "predict", where, *call], tmp_path).returncode == 1
        tls = SSLConfig(client_certificate, client_key, authority.ca)
        with Client(f"127.0.0.1:{grpc}", "words", "double", ssl_config=tls) as client:
            assert client.infer({"x": np.array(3)})[0]["y"] == 6


def test_a_wrong_option_is_told_in_two_lines(tmp_path: Path) -> None:
    done = run([*SERVING, "serve", ".", "--http-port", "x"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "mindspore-serving serve: error: argument --http-port: 'x': expected an int of 1 to 65535",
        "See 'mindspore-serving serve --help'.",
    ]


def test_a_file_of_python_is_served_by_its_directory(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = run([*SERVING, "serve", "words/servable_config.py"], tmp_path)
    assert done.returncode == 1
    assert f"serve the directory of a servable_config.py, '{tmp_path}/words'" in done.stderr
    (tmp_path / "model.py").touch()
    done = run([*SERVING, "serve", "model.py"], tmp_path)
    assert "is Python: serve the directory of a servable_config.py" in done.stderr
