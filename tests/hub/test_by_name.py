"""Models by their names wherever a path is taken: from the hub to answers."""

import json
import signal
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from mindspore_serving import server
from mindspore_serving.cli import config_file
from mindspore_serving.cli.servables import find
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.errors import NotFound
from mindspore_serving.servable.loader import load
from mindspore_serving.server.config import merge_config
from tests.cli.commands import SERVING, Command, run
from tests.e2e.harness import ROOT
from tests.hub.hugging_face_server import COMMIT, Hub, Repository
from tests.ports import free_port
from tests.waiting import eventually

EXAMPLE = ROOT / "examples" / "tiny_llm" / "model"
SNAPSHOT = f"models--tiny--novels/snapshots/{COMMIT}"


@pytest.fixture(autouse=True)
def novels(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's model as a repository; its path in the cache."""
    files = {path.name: path.read_bytes() for path in EXAMPLE.iterdir()}
    hub.repositories["tiny/novels"] = Repository({**files, "modeling.py": b"raise SystemExit"})
    hub.repositories["tiny/style"] = Repository(
        {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "README.md": b""}
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / SNAPSHOT


@pytest.mark.e2e
def test_serve_answers_with_a_model_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    port = str(free_port())
    words = ["tiny/novels", "--draft", "hf://tiny/novels", "--http-port", port, "--no-grpc"]
    options = ["--llm-option", "kv_cache_memory=64e6"]
    with Command([*SERVING, "serve", *words, *options], tmp_path) as command:
        command.says("Ctrl-C stops")
        assert f"hf://tiny/novels at {COMMIT}" in command.text
        body = {"model": "novels", "prompt": "It was", "max_tokens": 4, "temperature": 0}
        request = Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
        with urlopen(request, timeout=60) as reply:
            by_name = json.load(reply)["choices"][0]["text"]
    from mindspore_serving.llm import LLM, SamplingParams

    with LLM("tiny/novels", kv_cache_memory=64_000_000) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=4)
        (answer,) = llm.generate(["It was"], greedy)
    assert by_name == answer.outputs[0].text != ""


@pytest.mark.e2e
def test_ctrl_c_ends_a_download_at_once(hub: Hub, tmp_path: Path) -> None:
    hub.stalls, hub.stalled = threading.Event(), "cdn"
    with Command([*SERVING, "serve", "tiny/novels"], tmp_path) as command:
        eventually(lambda: [line for line in hub.log if len(line) > 64 and line[:3] == "GET"])
        command.send(signal.SIGINT)
        assert command.status() == 130, command.text
        assert not hub.stalls.is_set()
    hub.stalls.set()
    assert "Traceback" not in command.text


def test_a_configuration_file_takes_names(tmp_path: Path, novels: Path) -> None:
    text = """
servables:
  - path: tiny/novels
    draft: hf://tiny/novels
    adapter: {style: tiny/style}
  - path: hf://tiny/novels@main
    name: again
"""
    (tmp_path / "server.yaml").write_text(text)
    first, second = find(ServeSettings(paths=(), **config_file.read("server.yaml")))[0]
    assert (first.alias, second.alias) == ("novels", "again")
    assert Path(first.servable_directory, first.servable_name) == novels
    assert first.llm_options["draft"] == str(novels)
    assert Path(first.llm_options["adapters"]["style"]).name == COMMIT


def test_a_start_up_script_takes_a_name(novels: Path) -> None:
    options = {"adapters": {"style": "tiny/style"}, "max_loras": 1}
    config = server.ServableStartConfig("tiny/novels", "writer", llm_options=options)
    assert Path(config.servable_directory, config.servable_name) == novels
    assert config.alias == "writer"
    assert Path(config.llm_options["adapters"]["style"]).is_dir()
    merge_config([config])


CONFIG = """
from mindspore_serving.server import register

register.declare_llm(
    "hf://tiny/novels", draft="tiny/novels", mmproj="tower.gguf",
    adapters={"style": "tiny/style", "sql": "loras/sql"},
)
"""


def test_a_declared_model_is_downloaded_before_a_worker_starts(
    hub: Hub, tmp_path: Path, novels: Path
) -> None:
    (tmp_path / "writer").mkdir()
    (tmp_path / "loras").mkdir()  # so that loras/sql is no name
    (tmp_path / "writer/servable_config.py").write_text(CONFIG)
    merge_config([server.ServableStartConfig(str(tmp_path), "writer")])
    assert (novels / "model.safetensors").exists()
    hub.log.clear()
    language = load(str(tmp_path), "writer").language
    assert language is not None
    assert language.path == language.options["draft"] == str(novels)
    assert language.options["mmproj"] == str(tmp_path / "writer" / "tower.gguf")
    assert Path(language.options["adapters"]["style"]).name == COMMIT
    assert language.options["adapters"]["sql"] == "loras/sql"
    assert hub.log == []


def test_a_directory_beside_a_servable_is_no_name(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "writer/tiny").mkdir(parents=True)
    text = CONFIG.replace("hf://tiny/novels", "tiny/novels").replace("tiny/style", "loras/style")
    (tmp_path / "loras").mkdir()
    (tmp_path / "writer/servable_config.py").write_text(text)
    language = load(str(tmp_path), "writer").language
    assert language is not None
    assert language.path == str(tmp_path / "writer/tiny/novels")
    assert hub.log == []


def test_serve_without_a_network_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run([*SERVING, "serve", "Qwen/Qwen3-0.6B"], tmp_path)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("mindspore-serving: Qwen/Qwen3-0.6B is not on this machine, and http")
    assert "Traceback" not in done.stderr


def test_offline_serves_no_new_name(hub: Hub) -> None:
    settings = ServeSettings(paths=("tiny/novels",), offline=True)
    with pytest.raises(NotFound, match="tiny/novels is not downloaded"):
        find(settings)
    assert hub.log == []
