"""ModelScope's API and cache; its library downloads from the same server and reads the cache."""

import hashlib
import json
import pickle
from http.cookiejar import Cookie
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from requests.cookies import RequestsCookieJar

from mindspore_serving.errors import NotFound, StartError
from mindspore_serving.hub.reference import Reference, parse_reference
from mindspore_serving.hub.resolve import download
from mindspore_serving.hub.source import Unreachable, open_source
from tests.hub.servers import FileServer, Reply, Request

COMMIT, OLDER = "83ee97c6" + "6" * 32, "f194f509" + "1" * 32
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": bytes(range(256)) * 100,
    "modeling_tiny.py": b"print('run')",
    "README.md": b"# Tiny",
}


@pytest.fixture(autouse=True)
def cache(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MODELSCOPE_API_TOKEN", raising=False)
    return tmp_path / "modelscope"


def data(value: object, **more: object) -> Reply:
    return Reply(json.dumps({"Code": 200, "Success": True, "Data": value, **more}).encode())


def publish(server: FileServer, cdn: FileServer, files: dict[str, bytes] = FILES) -> None:
    """Publish a repository as ModelScope answers for it; weights lie on another host."""
    base = "/api/v1/models/Qwen/Tiny"
    entries = [
        {
            "Path": path,
            "Name": path,
            "Type": "blob",
            "Size": len(body),
            "Sha256": hashlib.sha256(body).hexdigest(),
            "Revision": COMMIT if path == "README.md" else OLDER,
        }
        for path, body in files.items()
    ]

    def listed(request: Request) -> Reply:
        if parse_qs(urlsplit(request.path).query)["Revision"] not in (["master"], ["v1"], [COMMIT]):
            return data({"Files": None, "LatestCommitter": None})
        return data(
            {
                "Files": [{"Path": "docs", "Type": "tree", "Size": 0}, *entries],
                "LatestCommitter": {"Id": "", "ShortId": COMMIT[:8]},
            }
        )

    def file(request: Request) -> Reply:
        path = parse_qs(urlsplit(request.path).query)["FilePath"][0]
        if path == "model.safetensors":
            return Reply(status=302, headers={"Location": f"{cdn.url}/{path}"})
        return Reply(files[path])

    branches = {"Branches": [{"Revision": "master"}], "Tags": [{"Revision": "v1"}]}
    server.routes = {
        base: data({"Name": "Tiny", "License": "apache-2.0"}),
        f"{base}/repo/files": listed,
        f"{base}/repo": file,
        f"{base}/revisions": data({"RevisionMap": branches}),
    }
    cdn.add("/model.safetensors", files["model.safetensors"])


def resolve(name: str, *, offline: bool = False) -> Path:
    reference = parse_reference(name)
    assert reference is not None
    return download(reference, offline=offline)


def test_a_repository_is_downloaded_to_the_cache_of_the_library(
    server: FileServer, cdn: FileServer, cache: Path
) -> None:
    publish(server, cdn)
    path = resolve("ms://Qwen/Tiny")
    assert path == cache / "models/Qwen--Tiny/snapshots/master"
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        name: body for name, body in FILES.items() if not name.endswith(".py")
    }
    asked = server.asked("/api/v1/models/Qwen/Tiny/repo")
    assert all(f"Revision={COMMIT}" in request.path for request in asked)
    cdn.requests.clear()
    assert resolve("ms://Qwen/Tiny") == path
    assert cdn.requests == []
    server.requests.clear()
    assert resolve("ms://Qwen/Tiny", offline=True) == path
    assert server.requests == []


def test_the_listing_has_the_commit_and_the_licence(server: FileServer, cdn: FileServer) -> None:
    publish(server, cdn)
    listing = open_source("ms").list_files(Reference("ms", "Qwen/Tiny"))
    assert (listing.revision, listing.licence) == (COMMIT, "apache-2.0")
    assert {file.path: file.size for file in listing.files} == {k: len(v) for k, v in FILES.items()}


def test_new_weights_of_a_branch_replace_the_former(server: FileServer, cdn: FileServer) -> None:
    publish(server, cdn)
    path = resolve("ms://Qwen/Tiny")
    changed = FILES["model.safetensors"][::-1]
    publish(server, cdn, {**FILES, "model.safetensors": changed})
    assert resolve("ms://Qwen/Tiny") == path
    assert (path / "model.safetensors").read_bytes() == changed


def test_a_cache_of_an_older_library_is_used(
    server: FileServer, cdn: FileServer, cache: Path
) -> None:
    path = cache / "hub/models/Qwen/Tiny___5"
    path.mkdir(parents=True)
    for name, body in FILES.items():
        (path / name).write_bytes(body)
    assert resolve("ms://Qwen/Tiny.5", offline=True) == path
    (model,) = open_source("ms").list_cached()
    assert str(model.reference) == "ms://Qwen/Tiny.5"


def test_an_unknown_revision_is_answered_with_those_near(
    server: FileServer, cdn: FileServer
) -> None:
    publish(server, cdn)
    assert resolve("ms://Qwen/Tiny@v1").name == "v1"
    with pytest.raises(NotFound, match=r"no revision 'mster'; did you mean 'master'\?.*master, v1"):
        resolve("ms://Qwen/Tiny@mster")


def test_a_misspelt_name_is_answered_with_the_name_that_is_near(server: FileServer) -> None:
    answers = {"success": True, "data": {"models": [{"id": "Qwen/Tiny"}, {"id": "a/b"}]}}
    server.routes["/openapi/v1/models"] = Reply(json.dumps(answers).encode())
    with pytest.raises(NotFound, match=r"has no ms://Qwen/Tony; did you mean 'Qwen/Tiny'\?$"):
        resolve("ms://Qwen/Tony")
    (asked,) = server.asked("/openapi/v1/models")
    assert asked.path == "/openapi/v1/models?search=Tony&page_size=20"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "set MODELSCOPE_API_TOKEN"),
        (403, "set MODELSCOPE_API_TOKEN"),
        (404, "has no ms://a/b"),
    ],
)
def test_a_refusal_names_the_variable(server: FileServer, status: int, text: str) -> None:
    server.routes["/api/v1/models/a/b"] = Reply(status=status)
    with pytest.raises((StartError, NotFound), match=text):
        resolve("ms://a/b")


def test_an_answer_of_another_form_is_an_error(server: FileServer) -> None:
    server.routes["/api/v1/models/a/b"] = data(None, Message="maintenance")
    with pytest.raises(StartError, match="answers to ms://a/b: maintenance"):
        resolve("ms://a/b")
    server.routes["/api/v1/models/a/b"] = Reply(b"<html>")
    with pytest.raises(Unreachable, match="no JSON"):
        resolve("ms://a/b")


def jar_of(tokens: dict[str, str]) -> bytes:
    """Pickle a jar of cookies as the library does at login."""
    jar = RequestsCookieJar()
    for name, value in tokens.items():
        jar.set_cookie(
            Cookie(
                0, name, value, None, False, "modelscope.cn", True, False, "/", True, False,
                2**40, False, None, None, {},
            )
        )  # fmt: skip
    return pickle.dumps(jar)


@pytest.mark.parametrize("tokens", [{"m_session_id": "t"}, {"a": "b", "m_session_id": "t"}])
def test_the_token_of_the_library_is_sent_and_not_to_the_cdn(
    server: FileServer, cdn: FileServer, tmp_path: Path, tokens: dict[str, str]
) -> None:
    credentials = tmp_path / "home" / "credentials"
    credentials.mkdir(parents=True)
    (credentials / "cookies").write_bytes(jar_of(tokens))
    publish(server, cdn)
    resolve("ms://Qwen/Tiny")
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer t"}
    assert {request.headers["cookie"] for request in server.requests} == {"m_session_id=t"}
    assert cdn.requests
    assert not any({"authorization", "cookie"} & set(request.headers) for request in cdn.requests)


def test_the_variable_of_the_token_comes_first(
    server: FileServer, cdn: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "mine")
    publish(server, cdn)
    open_source("ms").list_files(Reference("ms", "Qwen/Tiny"))
    assert server.requests[0].headers["authorization"] == "Bearer mine"


def test_a_list_that_was_cut_is_completed_by_directory(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindspore_serving.hub.sources.model_scope._MAX_ENTRIES", 2)
    rows = {
        path: {"Path": path, "Type": kind, "Size": 1}
        for path, kind in (("a", "tree"), ("b.json", "blob"), ("a/c.json", "blob"))
    }

    def listed(request: Request) -> Reply:
        root = parse_qs(urlsplit(request.path).query).get("Root")
        shown = ["a/c.json"] if root == ["a"] else ["a", "b.json"]
        return data({"Files": [rows[path] for path in shown]})

    server.routes = {"/api/v1/models/a/b": data({}), "/api/v1/models/a/b/repo/files": listed}
    listing = open_source("ms").list_files(Reference("ms", "a/b"))
    assert [file.path for file in listing.files] == ["b.json", "a/c.json"]


def test_a_cached_repository_is_listed_and_removed(
    server: FileServer, cdn: FileServer, cache: Path
) -> None:
    publish(server, cdn)
    resolve("ms://Qwen/Tiny")
    (model,) = open_source("ms").list_cached()
    assert str(model.reference) == "ms://Qwen/Tiny@master"
    assert open_source("ms").remove_cached(Reference("ms", "Qwen/Tiny")) == model.size > 25_600
    assert open_source("ms").list_cached() == []
