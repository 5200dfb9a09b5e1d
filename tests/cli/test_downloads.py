"""`pull`, `list`, `remove` and `show` of models by name, from a source on this machine."""

import json
import sys
from pathlib import Path

import pytest

from mindspore_serving.cli import downloads as commands
from mindspore_serving.cli import main
from tests.e2e.harness import ROOT
from tests.hub.servers import FileServer
from tests.hub.shelf import put_on_shelf
from tests.hub.test_ollama import WEIGHTS, publish

TINY = ROOT / "examples/tiny_llm/model"
NAME = "acme/tiny"


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    put_on_shelf(NAME, TINY, monkeypatch, tmp_path)
    return tmp_path


def output(capsys, *words) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def listed(capsys):
    capsys.readouterr()
    return json.loads(output(capsys, "list", "--json"))


def test_pull_prints_the_path_that_serve_takes(capsys, shelf) -> None:
    path = Path(output(capsys, "pull", NAME).strip())
    assert path.is_relative_to(shelf / "cache")
    assert (path / "model.safetensors").read_bytes() == (TINY / "model.safetensors").read_bytes()


def test_pull_names_the_chosen_files_and_the_revision(capsys) -> None:
    assert main(["pull", f"shelf://{NAME}"]) == 0
    said = capsys.readouterr().err
    (model,) = listed(capsys)
    assert f"shelf://{NAME} at {model['revision']}: model.safetensors, " in said
    assert "10.2 MB" in said


def test_list_has_a_row_for_each_download(capsys) -> None:
    main(["pull", NAME])
    (model,) = listed(capsys)
    assert (model["name"], model["format"]) == (f"shelf://{NAME}", "safetensors")
    assert model["size_bytes"] == sum(file.stat().st_size for file in TINY.iterdir())
    row = output(capsys, "list").splitlines()[1].split()
    assert row[0] == f"shelf://{NAME}"
    assert row[1] == model["revision"][:12]
    assert row[-1] == "safetensors"


def test_a_download_without_all_its_files_is_incomplete(capsys) -> None:
    path = Path(output(capsys, "pull", NAME).strip())
    (path / "model.safetensors").unlink()
    assert output(capsys, "list").splitlines()[1].endswith("incomplete")


def test_without_downloads_list_names_the_command_pull(capsys) -> None:
    assert main(["list"]) == 0
    assert "`mindspore-serving pull ORG/NAME`" in capsys.readouterr().err


def test_remove_says_how_much_was_freed(capsys) -> None:
    output(capsys, "pull", NAME)
    assert output(capsys, "remove", NAME, "--yes") == "freed 10.2 MB\n"
    assert listed(capsys) == []


@pytest.mark.parametrize(("answer", "status", "count"), [("y", 0, 0), ("", 1, 1)])
def test_remove_asks_on_a_terminal(answer, status, count, capsys, monkeypatch) -> None:
    main(["pull", NAME])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert main(["remove", NAME]) == status
    assert len(listed(capsys)) == count


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["remove", NAME], 2, "there is no terminal to ask: --yes removes it"),
        (["remove", "acme/tony", "--yes"], 1, "not downloaded; did you mean 'shelf://acme/tiny'?"),
        (["remove", f"{NAME}:Q8_0"], 2, "whole downloads are removed: leave out ':Q8_0'"),
        (["remove", f"{NAME}@v9", "--yes"], 1, "acme/tiny@v9 is not downloaded"),
        (["remove", "/", "--yes"], 2, "'/' is no name of a model, expected ORG/NAME"),
        (["remove", "../..", "--yes"], 2, "is no name of a model"),
        (["pull", "acme/none"], 1, "the shelf has no model acme/none"),
        (["pull", "."], 2, "'.' is no name of a model"),
        (["pull", "shelf://../../etc"], 2, "is no name of a model, expected shelf://ORG/NAME"),
        (["show", "acme/none"], 1, "the shelf has no model acme/none"),
    ],
)
def test_a_wrong_name_is_answered_in_a_sentence(words, status, text, capsys) -> None:
    main(["pull", NAME])
    assert main(words) == status
    assert text in capsys.readouterr().err


def test_show_of_a_name_reads_no_weights(capsys, shelf) -> None:
    shown = json.loads(output(capsys, "show", NAME, "--json"))
    assert (shown["architecture"], shown["problem"]) == ("LlamaForCausalLM", "")
    assert (shown["licence"], shown["path"]) == ("mit", "")
    assert shown["cache_bytes_per_token"] == 2560  # as `show` of the files
    weights = (TINY / "model.safetensors").stat().st_size
    assert shown["weight_bytes"] == weights
    assert not list((shelf / "cache").rglob("model.safetensors"))
    text = output(capsys, "show", NAME)
    assert "download       10.2 MB in 5 files" in text


def test_show_of_a_downloaded_name_is_that_of_its_path(capsys) -> None:
    path = output(capsys, "pull", NAME).strip()
    by_name = json.loads(output(capsys, "show", NAME, "--json"))
    assert by_name.pop("name") == f"shelf://{NAME}"
    assert by_name == json.loads(output(capsys, "show", path, "--json"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "just now"), (61, "1 minute ago"), (7300, "2 hours ago")]
)
def test_ages_have_a_single_unit(seconds, text) -> None:
    assert commands._age(seconds) == text


def test_a_tag_of_ollama_is_listed_and_removed_alone(capsys, shelf, monkeypatch) -> None:
    with FileServer().running() as server:
        monkeypatch.setenv("OLLAMA_MODELS", str(shelf / "ollama"))
        monkeypatch.setenv("MINDSPORE_SERVING_OLLAMA_REGISTRY", server.url)
        for tag in ("latest", "1b"):
            publish(server, server, f"library/tiny:{tag}", model=WEIGHTS + tag.encode())
            output(capsys, "pull", f"ollama://tiny:{tag}")
    formats = {model["name"]: model["format"] for model in listed(capsys)}
    assert formats == {"ollama://tiny:latest": "gguf", "ollama://tiny:1b": "gguf"}
    output(capsys, "remove", "ollama://tiny", "--yes")
    assert [model["name"] for model in listed(capsys)] == ["ollama://tiny:1b"]
