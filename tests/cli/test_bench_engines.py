"""`mindspore-serving bench --engines`: a server for each engine, one after the other."""

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from mindspore_serving import cli
from mindspore_serving.cli.bench_engines import arguments
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.llm.catalog import ENGINES
from tests.cli.commands import SERVING, Command
from tests.waiting import PATIENCE, eventually

SHORT = ["--concurrency", "2", "--requests", "4", "--input-tokens", "20", "--output-tokens", "4"]
MANY = 5  # times PATIENCE: a server is started and ended within it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for library in ("openvino", "torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tests.llm import chatty

    return chatty.build(tmp_path_factory.mktemp("model"))


@pytest.fixture
def missing() -> str:
    """An engine whose library is not installed here."""
    found = [name for name, row in ENGINES.items() if find_spec(row.library) is None]
    if not found:
        pytest.skip("the libraries of all engines are installed")
    return found[0]


def test_each_engine_has_its_interpreter_its_model_and_its_options(tmp_path: Path) -> None:
    settings = BenchSettings(
        str(tmp_path),
        engines=("ours", "llama.cpp"),
        engine_python=("llama.cpp=/opt/bin/python",),
        engine_model=("llama.cpp=model.gguf",),
        engine_serve=("ours=--llm-option 'kv_cache_memory=2e9'",),
    )
    assert arguments(settings) == {
        "ours": [str(tmp_path), "--engine", "ours", "--llm-option", "kv_cache_memory=2e9"],
        "llama.cpp": ["model.gguf", "--engine", "llama.cpp", "--python", "/opt/bin/python"],
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "ours,vlm"], "'vlm', expected some of ours, vllm, llama.cpp, genai; did"),
        (["--engines", "ours,openai"], "'openai', expected some of ours"),
        (["--engines", "ours,vllm,ours"], "--engines has 'ours' twice"),
        (["--engines", "ours", "--engine-python", "vllm=python"], "expected ENGINE=VALUE"),
        (["--engines", "ours", "--engine-python", "ours"], "expected ENGINE=VALUE"),
        (["--engines", "ours", "--engine-serve", "ours='"], "No closing quotation"),
        (["--engines", "ours", "--compare", "http://127.0.0.1:1"], "not with --compare"),
        (["--engines", "ours", "--protocol", "classic"], "not with --compare"),
        (["--engine-model", "ours=model"], "--engine-model needs --engines"),
    ],
)
def test_wrong_options_of_engines_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_url_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "http://127.0.0.1:1500", "--engines", "ours"]) == 2
    assert "so it needs the path of a model instead of a URL" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.torch
def test_engines_are_measured_in_turn_and_a_missing_engine_is_a_line(
    model: Path, missing: str, tmp_path: Path
) -> None:
    words = [*SERVING, "bench", str(model), "--engines", f"{missing},ours", *SHORT]
    words += ["--engine-serve", "ours=--llm-option kv_cache_memory=64e6"]
    with Command([*words, "--json", "out.json", "--chart", "out.html"], tmp_path) as command:
        assert command.status(MANY * PATIENCE) == 0, command.text
    assert f"{missing}: not measured: " in command.text
    assert "which is not installed; install it with: pip install" in command.text
    progress = [f"{missing}: starting", f"{missing}: not measured", "ours: starting"]
    progress += ["ours: ready after", "ours, 2 clients: 4 requests in"]
    places = [command.text.index(one) for one in progress]
    assert places == sorted(places)
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found["not_measured"]) == [missing]
    (row,) = found["runs"]
    assert (row["load"], row["engine"]) == ("ours, 2 clients", "ours")
    assert (row["answered"], row["generated_tokens"]) == (4, 16)
    assert row["memory_bytes"] > 16 << 20  # an interpreter with NumPy alone has more
    assert "ours, 2 clients" in (tmp_path / "out.html").read_text()


@pytest.mark.e2e
def test_if_no_engine_runs_the_status_is_1(missing: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = [*SERVING, "bench", "model", "--engines", missing, *SHORT]
    with Command(words, tmp_path) as command:
        assert command.status() == 1
    assert f"{missing}: not measured: " in command.text


@pytest.mark.e2e
def test_a_wrong_option_of_serve_is_said(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = [*SERVING, "bench", "model", "--engines", "ours", "--engine-serve", "ours=--no-such"]
    with Command(words, tmp_path) as command:
        assert command.status() == 1
    assert "ours: not measured: error: unrecognized arguments: --no-such" in command.text


@pytest.mark.e2e
@pytest.mark.torch
def test_the_server_ends_with_ctrl_c(model: Path, tmp_path: Path) -> None:
    words = [*SERVING, "bench", str(model), "--engines", "ours", "--requests", "100000"]
    with Command(words, tmp_path) as command:
        (server,) = eventually(lambda: children(command.pid))
        command.send(signal.SIGINT)
        assert command.status() == 130, command.text
    eventually(lambda: not Path(f"/proc/{server}").exists())


def children(pid: int) -> list[int]:
    """The processes that the main thread of process `pid` has started and that run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
