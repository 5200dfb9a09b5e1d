"""Modelers' API and the cache of openMind's library."""

import hashlib
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import Reference, parse_reference
from mindspore_serving.hub.resolve import download
from mindspore_serving.hub.source import open_source
from tests.hub.servers import FileServer, Reply, Request

COMMIT = "83ee97c6" + "6" * 32
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "chat_templates/a b.jinja": b"{{ messages }}",
    "model.safetensors": bytes(range(256)) * 100,
}


@pytest.fixture(autouse=True)
def cache(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENMIND_HUB_ENDPOINT", server.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OPENMIND_HUB_TOKEN", "secret")
    return tmp_path / "openmind" / "hub"


def data(value: object) -> Reply:
    return Reply(json.dumps({"code": "", "msg": "", "data": value}).encode())


def etag(path: str, body: bytes) -> str:
    """Return Git's hash of a small file, the SHA-256 of a large one."""
    if path.endswith(".safetensors"):
        return hashlib.sha256(body).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def publish(server: FileServer, commit: str = COMMIT) -> None:
    """Publish a repository as Modelers answers for it, one directory at a time."""

    def listed(request: Request) -> Reply:
        query = parse_qs(urlsplit(request.path).query)
        assert query["ref"] in (["main"], [commit])
        root = query.get("path", [""])[0]
        rows: dict[str, dict[str, object]] = {}
        for path, body in FILES.items():
            folder, _, _ = path.rpartition("/")
            if folder == root:
                is_lfs = path.endswith(".safetensors")
                row = {"type": "file", "size": len(body), "etag": etag(path, body)}
                rows[path] = {**row, "path": path, "is_lfs": is_lfs}
            elif not root:
                rows[folder] = {"type": "dir", "path": folder}
        last = {"commit": {"commit_sha": commit, "created": "2026-01-01T00:00:00Z"}}
        return data({"tree": list(rows.values()), "last_commit": last})

    server.routes = {
        "/api/v1/model/Qwen/Tiny": data({"name": "Tiny", "labels": {"license": ["apache-2.0"]}}),
        "/api/v1/file/Qwen/Tiny": listed,
    }
    for path, body in FILES.items():
        server.add(f"/api/v1/file/Qwen/Tiny/{commit}/media/{path}", body)


def resolve(name: str, *, offline: bool = False) -> Path:
    reference = parse_reference(name)
    assert reference is not None
    return download(reference, offline=offline)


def test_a_repository_is_downloaded_to_the_cache_of_the_library(
    server: FileServer, cache: Path
) -> None:
    publish(server)
    path = resolve("modelers://Qwen/Tiny")
    assert path == cache / "models--Qwen--Tiny" / "snapshots" / COMMIT
    for name, body in FILES.items():
        assert (path / name).read_bytes() == body
        assert (path / name).resolve().name == etag(name, body)
    assert (path.parent.parent / "refs" / "main").read_text() == COMMIT
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer secret"}
    server.requests.clear()
    assert resolve("modelers://Qwen/Tiny", offline=True) == path
    assert server.requests == []


def test_the_listing_has_the_commit_and_the_licence(server: FileServer) -> None:
    publish(server)
    listing = open_source("modelers").list_files(Reference("modelers", "Qwen/Tiny"))
    assert (listing.revision, listing.licence) == (COMMIT, "apache-2.0")
    assert {file.path: file.size for file in listing.files} == {k: len(v) for k, v in FILES.items()}


def test_a_small_file_with_another_hash_is_not_kept(server: FileServer, cache: Path) -> None:
    publish(server)
    server.add(f"/api/v1/file/Qwen/Tiny/{COMMIT}/media/config.json", FILES["config.json"][::-1])
    with pytest.raises(StartError, match=r"config.json of modelers://Qwen/Tiny .* it is removed"):
        resolve("modelers://Qwen/Tiny")
    assert not list(cache.rglob("config.json"))


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../x"])
def test_a_hostile_path_of_a_list_is_refused(server: FileServer, name: str) -> None:
    publish(server)
    row = {"type": "file", "path": name, "size": 1, "etag": "0" * 40}
    last = {"commit": {"commit_sha": COMMIT}}
    server.routes["/api/v1/file/Qwen/Tiny"] = data({"tree": [row], "last_commit": last})
    with pytest.raises(InvalidInputs, match="no relative path"):
        resolve("modelers://Qwen/Tiny")


def test_a_hostile_hash_of_a_list_is_refused(server: FileServer) -> None:
    publish(server)
    row = {"type": "file", "path": "model.onnx", "size": 1, "etag": "../../x"}
    last = {"commit": {"commit_sha": COMMIT}}
    server.routes["/api/v1/file/Qwen/Tiny"] = data({"tree": [row], "last_commit": last})
    with pytest.raises(StartError, match=r"lists 'model.onnx' with the hash '../../x'"):
        resolve("modelers://Qwen/Tiny")


def test_directories_without_end_are_refused(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindspore_serving.hub.sources.modelers._MAX_DIRECTORIES", 5)
    publish(server)

    def listed(request: Request) -> Reply:
        path = parse_qs(urlsplit(request.path).query).get("path", ["a"])[0]
        last = {"commit": {"commit_sha": COMMIT}}
        return data({"tree": [{"type": "dir", "path": f"{path}/a"}], "last_commit": last})

    server.routes["/api/v1/file/Qwen/Tiny"] = listed
    with pytest.raises(StartError, match="has over 5 directories"):
        open_source("modelers").list_files(Reference("modelers", "Qwen/Tiny"))


@pytest.mark.parametrize(
    ("status", "text"), [(401, "set OPENMIND_HUB_TOKEN"), (404, "has no modelers://a/b")]
)
def test_a_refusal_names_the_variable(server: FileServer, status: int, text: str) -> None:
    server.routes["/api/v1/model/a/b"] = Reply(status=status)
    with pytest.raises((StartError, NotFound), match=text):
        resolve("modelers://a/b")


def test_a_removed_revision_leaves_shared_blobs(server: FileServer, cache: Path) -> None:
    publish(server)
    resolve("modelers://Qwen/Tiny")
    later = "f194f509" + "1" * 32
    publish(server, later)
    resolve("modelers://Qwen/Tiny")
    source = open_source("modelers")
    names = {model.revision: str(model.reference) for model in source.list_cached()}
    assert names == {COMMIT: f"modelers://Qwen/Tiny@{COMMIT}", later: "modelers://Qwen/Tiny@main"}
    assert source.remove_cached(Reference("modelers", "Qwen/Tiny", COMMIT)) == 0
    assert resolve("modelers://Qwen/Tiny", offline=True)
    assert source.remove_cached(Reference("modelers", "Qwen/Tiny")) > 25_600
    assert source.list_cached() == []
    assert not (cache / "models--Qwen--Tiny").exists()
