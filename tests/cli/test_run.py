"""`mindspore-serving run`: a server and a conversation in one command."""

import signal
from dataclasses import fields
from pathlib import Path

import pytest

from mindspore_serving.cli import commands, main
from mindspore_serving.cli.chat_settings import RunSettings
from mindspore_serving.cli.options import parsed_values, to_settings, to_words
from mindspore_serving.cli.settings import ServableSettings
from tests.cli.commands import SERVING, Command, run
from tests.cli.conftest import write_words
from tests.cli.terminal import Terminal
from tests.waiting import PATIENCE, eventually

OPTIONS = ["--llm-option", "kv_cache_memory=64e6", "--max-tokens", "6", "--temperature", "0"]
MODEL = "chatty"
MODEL_OPTIONS = (
    "--name a --device-ids 0,1 --node-labels zone=a,disk=ssd --quantization int8 "
    "--max-model-len 4096 --adapter a=x --adapter b=y --llm-option dtype=f32 --deterministic "
    "--no-batch-dim --max-queue-seconds 1.5"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for library in ("openvino", "torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tests.llm import chatty

    return chatty.build(tmp_path_factory.mktemp("model"), MODEL)


def descendants(pid: int) -> list[int]:
    """The processes that `pid` and those below it have started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(word) for file in files for word in file.read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def all_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.e2e
@pytest.mark.torch
def test_a_prompt_prints_its_answer_and_ends_the_server(model: Path, tmp_path: Path) -> None:
    done = run([*SERVING, "run", str(model), "--prompt", "hello", *OPTIONS], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"Loading {MODEL} ...\n"
    assert len(done.stdout) > 6


@pytest.mark.e2e
@pytest.mark.torch
def test_a_conversation_begins_when_loaded_and_its_end_ends_the_server(
    model: Path, tmp_path: Path
) -> None:
    with Terminal([*SERVING, "run", str(model), *OPTIONS], tmp_path, columns=100) as terminal:
        terminal.shows(f"Loading {MODEL}:", "%|", f"{MODEL} at http://127.0.0.1:", "> ")
        processes = descendants(terminal.process.pid)
        assert len(processes) >= 2  # master and worker
        terminal.type("hello")
        terminal.shows("(6 tokens", "cut off at 6 tokens", "> ")
        terminal.type("exit")
        assert terminal.process.wait(PATIENCE) == 0
    eventually(lambda: all_gone(processes))


@pytest.mark.e2e
@pytest.mark.torch
def test_a_killed_command_leaves_no_process(model: Path, tmp_path: Path) -> None:
    with Terminal([*SERVING, "run", str(model), *OPTIONS], tmp_path) as terminal:
        terminal.shows("> ")
        processes = descendants(terminal.process.pid)
        terminal.process.kill()
        terminal.process.wait()
        eventually(lambda: all_gone(processes))


@pytest.mark.e2e
@pytest.mark.torch
def test_an_interrupt_while_the_model_loads_leaves_no_process(model: Path, tmp_path: Path) -> None:
    words = [*SERVING, "run", str(model), "--prompt", "hello", *OPTIONS]
    with Command(["env", "--default-signal=INT", *words], tmp_path) as command:
        processes = eventually(lambda: descendants(command.pid))
        command.send(signal.SIGINT)
        assert command.status() == 130, command.text
    eventually(lambda: all_gone(processes))


@pytest.mark.e2e
@pytest.mark.torch
def test_a_wrong_option_of_the_engine_is_status_2(model: Path, tmp_path: Path) -> None:
    done = run([*SERVING, "run", str(model), "--prompt", "a", "--llm-option", "dtyp=f32"], tmp_path)
    assert done.returncode == 2
    assert "did you mean 'dtype'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nowhere", "There is no file or directory"),
        ("words", "nobody"),
        ("net.onnx", "net.onnx is not a language model, so there is nobody to chat with: write"),
        ("http://127.0.0.1:1", "is a URL: write mindspore-serving chat http://127.0.0.1:1"),
    ],
)
def test_a_path_without_a_language_model_is_refused_at_once(
    path: str, told: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()
    (tmp_path / "words" / "1").mkdir(parents=True)
    (tmp_path / "words" / "1" / "net.onnx").touch()
    assert main(["run", path, "--prompt", "a"]) == (2 if "://" in path else 1)
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


@pytest.mark.e2e
def test_a_servable_without_a_language_model_says_so_when_loaded(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = run([*SERVING, "run", "words", "--prompt", "a"], tmp_path)
    assert (done.returncode, "serves no language model" in done.stderr) == (1, True)


def test_options_for_the_model_reach_the_server_as_they_were_given() -> None:
    words = MODEL_OPTIONS.split()
    parser = commands.parsers(commands.parser())["run"]
    values = parsed_values(RunSettings, parser.parse_args(["m", *words]))
    made = to_words(ServableSettings, to_settings(RunSettings, values))
    again = parsed_values(RunSettings, parser.parse_args(["m", *made]))
    assert again == values
    assert len(values) == 1 + len([word for word in words if word.startswith("--")]) - 1
    assert {field.name for field in fields(ServableSettings)} >= values.keys() - {"model"}
