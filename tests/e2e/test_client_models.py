"""Models that clients of Ollama pull, create, copy and delete, by its Python library."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ollama
import pytest

from mindspore_serving.server import client_models
from tests.cli.conftest import write_words
from tests.e2e.harness import ROOT, config, serving
from tests.hub.hugging_face_server import Hub, Repository, hugging_face
from tests.waiting import PATIENCE, eventually

TINY = ROOT / "examples/tiny_llm/model"
NAME = "hf.co/acme/tiny"
HELLO = [{"role": "user", "content": "Hi"}]
pytestmark = [pytest.mark.e2e]


@dataclass
class Site:
    """A server whose clients may pull the models of acme, and the hub that has them."""

    hub: Hub
    client: ollama.Client
    cache: Path

    def names(self) -> list[str]:
        return [model.model or "" for model in self.client.list().models]

    def weights(self) -> list[Path]:
        return list(self.cache.rglob("model.safetensors"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    write_words(directory)
    with hugging_face() as hub, pytest.MonkeyPatch.context() as patch:
        files = {file.name: file.read_bytes() for file in TINY.iterdir()}
        hub.repositories["acme/tiny"] = Repository(files)
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_CACHE", str(directory / "cache"))
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        patch.setattr(client_models, "MAX_PULLS", 1)
        with serving(directory, config(directory, "words"), pull_prefixes=["hf://acme/"]) as calls:
            client = ollama.Client(host=f"http://127.0.0.1:{calls.http}", timeout=PATIENCE)
            with client:
                yield Site(hub, client, directory / "cache")


def test_a_pull_that_its_client_leaves_is_stopped(site: Site) -> None:
    site.hub.stalls = threading.Event()
    steps = site.client.pull(NAME, stream=True)
    assert next(iter(steps)).status == "pulling manifest"
    with pytest.raises(ollama.ResponseError, match="1 models are being downloaded") as full:
        site.client.pull("hf.co/acme/other")
    assert full.value.status_code == 429
    steps.close()
    site.hub.stalls.set()
    site.hub.stalls = None

    def can_pull() -> bool:
        with pytest.raises(ollama.ResponseError) as error:
            site.client.pull("hf.co/acme/none")
        return error.value.status_code != 429

    eventually(can_pull)
    assert not site.weights()


def test_a_model_is_pulled_with_progress_and_answers(site: Site) -> None:
    steps = list(site.client.pull(NAME, stream=True))
    assert steps[0].status == "pulling manifest"
    assert steps[-1].status == "success"
    sizes = [(step.completed, step.total) for step in steps if step.digest]
    total = sum(file.stat().st_size for file in TINY.iterdir())
    assert sizes[0] == (0, total)
    assert sizes[-1] == (total, total)
    (model,) = site.client.list().models
    assert (model.model, model.size) == (f"{NAME}:latest", total)
    answer = site.client.chat(NAME, HELLO, options={"num_predict": 2})
    assert answer.eval_count == 2


def test_a_second_pull_downloads_nothing(site: Site) -> None:
    bodies = site.hub.gets("model.safetensors")
    assert site.client.pull(NAME).status == "success"
    assert site.hub.gets("model.safetensors") == bodies


def test_a_copy_answers_as_its_model(site: Site) -> None:
    site.client.copy(NAME, "short")
    assert site.names() == [f"{NAME}:latest", "short:latest"]
    assert site.client.show("short").modelinfo == site.client.show(NAME).modelinfo
    assert site.client.generate("short", "Hi", options={"num_predict": 1}).done
    site.client.delete("short")


def test_a_model_is_created_with_parameters_and_a_system_message(site: Site) -> None:
    steps = site.client.create(
        "pirate:v1", from_=NAME, system="Arr.", parameters={"temperature": 0.25}, stream=True
    )
    assert [step.status for step in steps] == ["loading model", "success"]
    shown = site.client.show("pirate:v1")
    assert "FROM hf://acme/tiny\nPARAMETER temperature 0.25\n" in (shown.modelfile or "")
    assert 'SYSTEM """Arr."""' in (shown.modelfile or "")
    assert shown.license == "apache-2.0"
    assert site.client.chat("pirate:v1", HELLO, options={"num_predict": 1}).done


@pytest.mark.parametrize(
    ("request_", "body", "status", "text"),
    [
        ("POST pull", {"model": "hf.co/other/tiny"}, 403, "the operator allows hf://acme/"),
        ("POST pull", {"model": "hf://acme/../../x"}, 400, "is no name of a model"),
        ("POST pull", {"model": "/etc/passwd"}, 400, "is no name of a model"),
        ("POST pull", {}, 400, "model is missing"),
        ("POST pull", {"model": NAME, "insecure": True}, 400, "certificates are checked"),
        ("POST pull", {"model": "hf.co/acme/none"}, 404, "has no model acme"),
        ("POST copy", {"source": "none", "destination": "x"}, 404, "'none' not found"),
        ("POST copy", {"source": NAME, "destination": "words"}, 403, "of the operator"),
        ("POST copy", {"source": NAME, "destination": "../x"}, 400, "is no name of a model"),
        ("POST create", {"model": "x", "from": "/etc/passwd"}, 400, "a path"),
        ("POST create", {"model": "x", "from": "words"}, 400, "expected a language model"),
        ("POST create", {"model": "x", "from": NAME, "template": "y"}, 400, "template is not"),
        ("POST create", {"model": "x", "from": NAME, "files": {"a": "b"}}, 400, "files is not"),
        ("POST create", {"model": "words", "from": NAME}, 403, "of the operator"),
        ("DELETE delete", {"model": "words"}, 403, "of the operator"),
        ("DELETE delete", {"model": "none"}, 404, "'none' not found"),
        ("POST push", {"model": NAME}, 403, "clients send no files"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(site, request_, body, status, text) -> None:
    verb, path = request_.split()
    answer = site.client._client.request(verb, f"/api/{path}", json={"stream": False, **body})
    assert (answer.status_code, text in answer.json()["error"]) == (status, True), answer.text


def test_an_error_after_the_first_step_is_the_last_line(site: Site) -> None:
    with pytest.raises(ollama.ResponseError, match="has no model acme/none"):
        list(site.client.pull("hf.co/acme/none", stream=True))


def test_the_last_name_of_a_download_deletes_its_files(site: Site) -> None:
    site.client.delete(NAME)
    assert site.names() == ["pirate:v1"]
    assert site.weights()
    site.client.delete("pirate:v1")
    assert site.names() == []
    assert not site.weights()
    with pytest.raises(ollama.ResponseError, match="does not exist"):
        site.client.chat(NAME, HELLO)
