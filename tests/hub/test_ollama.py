"""Ollama's registry and store: what is pulled here is what `ollama pull` would leave."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.hub.source import Source, open_source
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf
from mindspore_serving.llm.checkpoint.model_files import read_recommended
from tests.hub.servers import FileServer, Reply
from tests.llm.gguf_files import write_model

WEIGHTS = b"GGUF" + bytes(2000)
CONFIG = b'{"model_format": "gguf"}'
MEDIA = "application/vnd.ollama.image."


def layer(kind: str, body: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return {"mediaType": f"{MEDIA}{kind}", "size": len(body), "digest": digest}


@pytest.fixture
def store(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("MINDSPORE_SERVING_OLLAMA_REGISTRY", server.url)
    return tmp_path / "ollama"


def publish(server: FileServer, cdn: FileServer, name: str, **layers: bytes) -> str:
    """Publish layers as `library/tiny:1b` does; blobs lie on another host, as theirs do."""
    repository, _, tag = name.partition(":")
    rows = [layer(kind, body) for kind, body in layers.items()]
    config = {**layer("config", CONFIG), "mediaType": "application/vnd.docker.container.image.v1"}
    manifest = json.dumps({"schemaVersion": 2, "config": config, "layers": rows})
    server.add(f"/v2/{repository}/manifests/{tag}", manifest.encode())
    for body in (CONFIG, *layers.values()):
        digest = hashlib.sha256(body).hexdigest()
        cdn.add(f"/{digest}", body)
        server.routes[f"/v2/{repository}/blobs/sha256:{digest}"] = Reply(
            status=307, headers={"Location": f"{cdn.url}/{digest}"}
        )
    return manifest


def source() -> Source:
    return open_source("ollama")


def test_a_model_is_pulled_into_the_store(server: FileServer, cdn: FileServer, store: Path) -> None:
    texts = {"template": b"{{ .Prompt }}", "params": b'{"temperature": 0.6}', "license": b"MIT"}
    manifest = publish(server, cdn, "library/tiny:1b", model=WEIGHTS, **texts)
    path = Path(resolve("ollama://tiny:1b"))
    assert (path.name, path.read_bytes()) == ("model.gguf", WEIGHTS)
    assert (path.parent / "template.txt").read_bytes() == texts["template"]
    kept = store / "manifests/registry.ollama.ai/library/tiny/1b"
    assert kept.read_text() == manifest
    blobs = {blob.name: blob.read_bytes() for blob in (store / "blobs").iterdir()}
    assert blobs == {
        f"sha256-{hashlib.sha256(body).hexdigest()}": body
        for body in (CONFIG, WEIGHTS, *texts.values())
    }


def test_parameters_are_the_recommended_sampling(
    server: FileServer, cdn: FileServer, store: Path, tmp_path: Path
) -> None:
    weights = write_model(tmp_path / "tiny.gguf").read_bytes()
    params = b'{"temperature": 0.6, "repeat_penalty": 1.1, "stop": ["<|im_end|>"], "top_k": -5}'
    publish(server, cdn, "library/tiny:1b", model=weights, params=params)
    path = Path(resolve("ollama://tiny:1b"))
    assert find_gguf(path) == path
    assert read_recommended(path) == {"temperature": 0.6, "repetition_penalty": 1.1}


def test_layers_in_the_store_are_not_downloaded(
    server: FileServer, cdn: FileServer, store: Path
) -> None:
    publish(server, cdn, "library/tiny:latest", model=WEIGHTS)
    path = resolve("ollama://tiny")
    cdn.requests.clear()
    server.requests.clear()
    assert resolve("ollama://tiny:latest") == path
    assert cdn.requests == []
    server.requests.clear()
    assert resolve("ollama://tiny", offline=True) == path
    assert server.requests == []


def test_names_have_a_namespace_and_a_host(
    server: FileServer, cdn: FileServer, store: Path
) -> None:
    publish(server, cdn, "me/tiny:latest", model=WEIGHTS)
    assert Path(resolve("ollama://me/tiny")).read_bytes() == WEIGHTS
    assert Path(resolve(f"ollama://{server.host}/me/tiny:latest")).read_bytes() == WEIGHTS
    assert (store / "manifests" / server.host / "me/tiny/latest").is_file()
    models = source().list_cached()
    assert {model.path.name for model in models} == {"model.gguf"}
    names = [str(model.reference) for model in models]
    assert names == [f"ollama://{server.host}/me/tiny:latest", "ollama://me/tiny:latest"]
    with pytest.raises(InvalidInputs, match="has too many '/'"):
        resolve("ollama://a/b/c/d")


def test_a_removed_model_leaves_shared_layers(
    server: FileServer, cdn: FileServer, store: Path
) -> None:
    publish(server, cdn, "library/tiny:a", model=WEIGHTS, license=b"MIT")
    publish(server, cdn, "library/tiny:b", model=WEIGHTS[::-1], license=b"MIT")
    for tag in "ab":
        resolve(f"ollama://tiny:{tag}")
    reference = parse_reference("ollama://tiny:a")
    assert reference is not None
    assert source().remove_cached(reference) == len(WEIGHTS)
    assert source().find_cached(reference) is None
    assert resolve("ollama://tiny:b", offline=True)
    assert source().remove_cached(reference) == 0


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ({"layers": []}, "without a list of 1 to 1000 layers"),
        ({"layers": [layer("model", b"x")] * 1001}, "without a list of 1 to 1000 layers"),
        ({"layers": "no"}, "without a list"),
        ([], "without a list"),
        ({"layers": [{**layer("model", b"x"), "digest": "sha256:../../x"}]}, "has a layer"),
        ({"layers": [{**layer("model", b"x"), "size": -1}]}, "has a layer"),
        ({"layers": ["no"]}, "has a layer 'no', expected a size and a sha256 digest"),
        ({"layers": [{**layer("model", b"x"), "size": 1 << 60}]}, "the download needs 1152921504"),
        ({"layers": [layer("tensor", b"x")] * 2}, "has 0 GGUF files, expected 1: tensor"),
    ],
)
def test_a_hostile_manifest_is_refused(
    server: FileServer, store: Path, manifest: object, text: str
) -> None:
    server.add("/v2/library/tiny/manifests/latest", json.dumps(manifest).encode())
    with pytest.raises((StartError, NotFound), match=text):
        resolve("ollama://tiny")
    assert not list(store.rglob("sha256*"))


def test_a_wrong_layer_is_not_kept(server: FileServer, cdn: FileServer, store: Path) -> None:
    publish(server, cdn, "library/tiny:latest", model=WEIGHTS)
    cdn.routes[f"/{hashlib.sha256(WEIGHTS).hexdigest()}"] = Reply(WEIGHTS[::-1])
    with pytest.raises(StartError, match="of ollama://tiny was downloaded with the SHA-256"):
        resolve("ollama://tiny")
    assert not list(store.rglob(f"sha256-{hashlib.sha256(WEIGHTS).hexdigest()}*"))
    assert not (store / "manifests").exists()


def test_a_missing_tag_is_named(server: FileServer, store: Path) -> None:
    with pytest.raises(NotFound, match=f"^{server.host} has no ollama://tiny:9b$"):
        resolve("ollama://tiny:9b")
