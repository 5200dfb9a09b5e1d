"""What docs/engines.md shows works: `bench` is in test_engine_bench, environments in tests/e2e."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import cli
from mindspore_serving.cli import config_file
from mindspore_serving.process.interpreter import CACHE
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import write_servable
from tests.e2e.interpreters import SOURCE, light_environment
from tests.engines.served import KINDS, environment, model
from tests.engines.shown import PAGE, commands, in_place
from tests.llm.real_model import real_model
from tests.llm.upstream.faulty import DONE, HEAD, faulty, piece
from tests.pages import blocks
from tests.ports import free_port
from tests.waiting import PATIENCE

MANY = 10  # times PATIENCE: vLLM imports for a minute where the machine is busy
ENGINES = {kind.engine: kind for kind in KINDS}
SMALL = {  # what a machine that others use has room for
    "vllm": ["--llm-option", "kv_cache_memory=64e6", "--engine-option", "enforce_eager=true"],
    "llama.cpp": ["--max-model-len", "512", "--llm-option", "max_num_seqs=8"],
}
SMALL["llama.cpp"] += ["--engine-option", "use_extra_bufts=false"]
SERVE = commands("serve")


def name_of(words: list[str]) -> str:
    return " ".join(words)


def test_the_page_has_the_commands_that_are_tried_here() -> None:
    assert [words[0] for words in SERVE] == [
        "./model", "./model", "./model", "./model.gguf", "--upstream",
    ]  # fmt: skip


@pytest.mark.parametrize("words", SERVE, ids=name_of)
def test_the_options_are_those_of_serve(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model.gguf").touch()
    assert cli.main(["config", *words]) == 0


def test_interpreters_and_environments_are_relative_to_the_file(tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks(PAGE) if block.language == "yaml"]
    (tmp_path / "server.yaml").write_text(text)
    old, new = config_file.read(str(tmp_path / "server.yaml"))["servables"]
    assert Path(old["python"]) == tmp_path / "environments" / "numpy1" / "bin" / "python"
    assert Path(new["environment"]) == tmp_path / "environments" / "new"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("words", [one for one in SERVE if "--engine" in one], ids=name_of)
def test_a_model_is_served_as_shown(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = words[words.index("--python") + 1]
    engine = words[words.index("--engine") + 1]
    python = environment(ENGINES[engine])
    if words[0] == "./model":
        shutil.move(model(ENGINES["vllm"], tmp_path), tmp_path / "model")
    else:
        (tmp_path / "model.gguf").symlink_to(real_model())
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes a minute
    assert complete([*in_place(words, {shown: python}), *SMALL[engine]], tmp_path)


@pytest.mark.e2e
def test_another_interpreter_has_a_servable_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (words,) = [one for one in SERVE if "--python" in one and "--engine" not in one]
    write_servable(tmp_path, "model", SOURCE)
    python = str(light_environment(tmp_path / "environment"))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    with serving(in_place(words, {"/opt/numpy1/bin/python": python}), tmp_path) as port:
        (answer,) = ask(port, "model/model:look", {"instances": [{"x": [1, 2, 3]}]})["instances"]
        assert answer["prefix"] == str(tmp_path / "environment")


@pytest.mark.e2e
def test_an_upstream_is_served_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "the key")
    with faulty(lambda _: (HEAD, piece("Good day", "stop"), DONE)) as server:
        words = in_place(SERVE[-1], {"http://host:8000/v1": server.url})
        assert complete(words, tmp_path) == "Good day"
    assert [one.headers["authorization"] for one in server.asked] == ["Bearer the key"]


def complete(words: list[str], directory: Path) -> str:
    """What the language model that `serve` with `words` serves says."""
    with serving(words, directory) as port:
        answer = ask(port, "v1/completions", {"prompt": "The sea is", "max_tokens": 4})
        return str(answer["choices"][0]["text"])


@contextmanager
def serving(words: list[str], directory: Path) -> Iterator[int]:
    """The port of `serve` with `words`."""
    port = free_port()
    words = [*SERVING, "serve", *words, "--strict", "--no-grpc", "--http-port", str(port)]
    with Command(words, directory) as server:
        server.says("Ready after", MANY * PATIENCE)
        yield port


def ask(port: int, path: str, body: object) -> Any:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", json.dumps(body).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
        return json.load(reply)
