"""What `serve` says before it listens, and when it does."""

import http.client
import json
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.cli import main, preflight
from mindspore_serving.llm.catalog import RUNTIMES
from tests.cli.commands import SERVING, Command, run
from tests.cli.conftest import WORDS, write_words
from tests.llm.real_model import real_model
from tests.llm.upstream.faulty import DONE, HEAD, faulty, piece
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

READY = "Ctrl-C stops"


def slow(directory: Path) -> None:
    """The servable "words", which waits for the file "go" when it is loaded."""
    wait = (
        "import os, time\n"
        f"open({str(directory / 'begun')!r}, 'w').close()\n"
        f"while not os.path.exists({str(directory / 'go')!r}):\n    time.sleep(0.01)\n"
    )
    write_words(directory)
    (directory / "words" / "servable_config.py").write_text(wait + WORDS)


def post(port: str, path: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)) as one:
        one.request("POST", path, json.dumps({"instances": [{"x": 1}]}))
        answer = one.getresponse()
        return answer.status, json.loads(answer.read())


def test_with_wait_serve_listens_when_all_models_are_loaded(tmp_path: Path) -> None:
    slow(tmp_path)
    port = str(free_port())
    words = [*SERVING, "serve", "words", "--wait", "--http-port", port, "--no-grpc"]
    with Command(words, tmp_path) as command:
        eventually((tmp_path / "begun").exists)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE)
        (tmp_path / "go").touch()
        command.says(READY)
        text = command.text
        assert text.index("words  version 1 loaded") < text.index("listening on")
        assert post(port, "/model/words:double") == (200, {"instances": [{"y": 2}]})
        assert post(port, "/model/nothing:double")[0] == 404
        assert post(port, "/model/words:nothing")[0] == 404


def workers_of(pid: int) -> list[str]:
    """Command lines of the workers of a server."""
    lines = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                lines.append((status.parent / "cmdline").read_text().replace("\0", " "))
    return [line for line in lines if "mindspore_serving.worker" in line]


@pytest.mark.parametrize("options", [[], ["--name", "small", "--log-level", "debug"]])
def test_serve_starts_the_worker_of_a_gguf_file_early(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "model.gguf").symlink_to(real_model())
    words = [*SERVING, "serve", "model.gguf", *options, "--no-grpc", "--memory", "low"]
    with Command([*words, "--http-port", str(free_port())], tmp_path) as command:
        command.says(READY)
        (worker,) = workers_of(command.pid)
        assert f"--model {tmp_path / 'model.gguf'} " in worker


def upstream_words(port: int, *words: str) -> list[str]:
    """`serve` of a model of another server on `port`."""
    options = ["--engine-option", "model=far", "--engine-option", "health_interval=0.1"]
    url = f"http://127.0.0.1:{port}/v1"
    return [*SERVING, "serve", "--upstream", url, "--name", "far", *options, *words]


def test_an_upstream_that_does_not_answer_is_named_and_not_ready(tmp_path: Path) -> None:
    away, port = free_port(), str(free_port())
    with Command(upstream_words(away, "--http-port", port, "--no-grpc"), tmp_path) as command:
        command.says(READY)
        assert "NOT READY: far.  Until then /readyz answers 503.\n" in command.text
        assert f"NOT READY: the upstream http://127.0.0.1:{away} cannot be reached: Conn" in (
            command.text
        )
        assert "Ready after" not in command.text
        assert "version 1 loaded" not in command.text
        with closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)) as one:
            one.request("GET", "/readyz")
            assert one.getresponse().status == 503


def test_with_wait_serve_listens_when_its_upstream_answers(tmp_path: Path) -> None:
    away, port = free_port(), str(free_port())
    words = upstream_words(away, "--wait", "--http-port", port, "--no-grpc")
    with Command(words, tmp_path) as command:
        command.says(f"Waiting (--wait) for far: the upstream http://127.0.0.1:{away} cannot be")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE)
        with faulty(lambda _: (HEAD, piece("Good day", "stop"), DONE), away):
            command.says(READY)
            assert "Ready after" in command.text


def test_with_wait_a_port_in_use_is_told_before_any_model_is_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options in (["--http-port", port, "--no-grpc"], ["--grpc-port", port, "--no-http"]):
            done = run([*SERVING, "serve", "words", "--wait", *options], tmp_path)
            assert done.returncode == 1
            assert f"127.0.0.1:{port} failed" in done.stderr
            assert "loaded" not in done.stdout


def test_a_port_that_grpc_cannot_have_is_an_error_of_a_line(tmp_path: Path) -> None:
    write_words(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run([*SERVING, "serve", "words", "--grpc-port", port, "--no-http"], tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert f"address 127.0.0.1:{port} failed: Address already in use" in done.stderr


def test_statuses_are_the_default_and_can_be_turned_off(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    words = [*SERVING, "serve", "words", "--http-port", port, "--no-grpc"]
    with Command([*words, "--no-http-status-codes"], tmp_path) as command:
        command.says(READY)
        status, body = post(port, "/model/nothing:double")
        assert (status, [*body]) == (200, ["error_msg"])


def test_an_error_of_a_start_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "servable_config.py").write_text("raise ValueError('no such luck')\n")
    done = run([*SERVING, "serve", ".", "--http-port", str(free_port()), "--no-grpc"], tmp_path)
    assert done.stderr.startswith(
        "mindspore-serving: Fail to start workers: servable broken, device 0: "
    )
    assert "no such luck" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not {*"{}<>"} & {*done.stderr}


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda _: None)


@pytest.mark.usefixtures("nothing_installed")
def test_missing_libraries_of_language_models_are_found_before_ports_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert main(["serve", str(tmp_path / "talk"), "--no-grpc"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "mindspore-serving: talk: a language model needs tokenizers, which is not installed; "
        "install it with: pip install 'mindspore-serving[llm]'\n"
    )


RUNTIME_LIBRARIES = {"mindir": "mindspore", "native": "llvmlite", "combined": "llvmlite"}


@pytest.mark.parametrize("runtime", [name for name, row in RUNTIMES.items() if row.opens[0] == "."])
def test_library_of_each_runtime_is_looked_for(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    modules: list[str] = []
    monkeypatch.setattr(preflight, "_check", modules.append)
    preflight.check_library(str(tmp_path.parent), tmp_path.name, runtime, None)
    expected = RUNTIME_LIBRARIES.get(runtime, runtime)
    assert modules == ["tokenizers", "jinja2", expected]


def test_missing_libraries_of_bare_models_are_found_before_a_port_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore_serving.backends import formats

    row = formats.FORMATS["onnx"]
    missing = formats.ModelFormat(row.target, "no_such_library", row.extra)
    monkeypatch.setitem(formats.FORMATS, "onnx", missing)
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.onnx").touch()
    assert main(["serve", str(tmp_path / "net"), "--no-grpc"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pip install 'mindspore-serving[onnx]'" in shown.err


def test_choices_are_shown_as_choices(capsys: pytest.CaptureFixture[str]) -> None:
    for command, shown in (
        ("serve", ["{always,limited,never}", "Ascend, GPU or CPU", "{int8,int4}", "{r21,bare}"]),
        ("quantize", ["{int8,int4,float16}"]),
        ("bench", ["{chat,completions,tgi,classic}"]),
    ):
        with pytest.raises(SystemExit):
            main([command, "--help-all" if command == "serve" else "--help"])
        text = capsys.readouterr().out
        assert [choice for choice in shown if choice not in text] == []
        assert "checkpoint" in text or command == "bench"
