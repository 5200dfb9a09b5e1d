"""Images of registries whose /models has a model; layers and manifests that are hostile."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.hub.resolve import download
from mindspore_serving.hub.source import open_source
from mindspore_serving.hub.sources import oci
from tests.hub.servers import FileServer, Reply, Request

Entry = tuple[str, bytes] | tarfile.TarInfo
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def layer(entries: Iterable[Entry], *, packed: bool = True) -> bytes:
    """Return a tar with files and links."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
            else:
                member = tarfile.TarInfo(entry[0])
                member.size = len(entry[1])
                archive.addfile(member, io.BytesIO(entry[1]))
    return gzip.compress(stream.getvalue(), 1) if packed else stream.getvalue()


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def publish(
    server: FileServer, *layers: bytes, tag: str = "v1", media: str = GZIP, **more: Any
) -> str:
    """Publish an image, also by its digest; return the digest."""
    rows = [{"mediaType": media, "size": len(x), "digest": digest(x), **more} for x in layers]
    manifest = json.dumps({"schemaVersion": 2, "layers": rows}).encode()
    server.add(f"/v2/team/net/manifests/{tag}", manifest)
    server.add(f"/v2/team/net/manifests/{digest(manifest)}", manifest)
    for body in layers:
        server.add(f"/v2/team/net/blobs/{digest(body)}", body)
    return digest(manifest)


def resolve(server: FileServer, *, tag: str = "v1", offline: bool = False) -> Path:
    reference = parse_reference(f"oci://{server.host}/team/net:{tag}")
    assert reference is not None
    return download(reference, offline=offline)


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def test_the_models_of_an_image_are_unpacked(server: FileServer, tmp_path: Path) -> None:
    base = layer([("bin/sh", b"#!"), ("models/config.json", b"{}")])
    weights = ("./models/model.safetensors", b"weights")
    model = layer([weights, ("models/1/a.txt", b"1"), link("models/b", "1")], packed=False)
    publish(server, base, model)
    path = resolve(server)
    expected = {"config.json": b"{}", "model.safetensors": b"weights", "1/a.txt": b"1"}
    assert contents(path) == expected
    assert (path / "b" / "a.txt").read_bytes() == b"1"
    server.requests.clear()
    assert resolve(server, offline=True) == path
    assert server.requests == []
    assert resolve(server) == path
    assert [request.path for request in server.requests] == ["/v2/team/net/manifests/v1"]
    assert not list((tmp_path / "cache").rglob("layers"))


def test_an_image_of_a_single_file_is_that_file(server: FileServer) -> None:
    publish(server, layer([("models/net.onnx", b"onnx")]))
    assert resolve(server).name == "net.onnx"


def test_a_layer_that_is_a_file_is_named_by_its_title(server: FileServer) -> None:
    title = {"org.opencontainers.image.title": "net.onnx"}
    publish(server, b"onnx", media="application/octet-stream", annotations=title)
    assert resolve(server).name == "net.onnx"


@pytest.mark.parametrize("title", ["../x", "a/../../x", "a\0b"])
def test_a_hostile_title_is_refused(server: FileServer, tmp_path: Path, title: str) -> None:
    titles = {"org.opencontainers.image.title": title}
    publish(server, b"onnx", media="application/octet-stream", annotations=titles)
    with pytest.raises(StartError, match="is no tar|behind a link"):
        resolve(server)
    assert not list(tmp_path.rglob("x"))


def test_a_moved_tag_is_unpacked_again(server: FileServer) -> None:
    publish(server, layer([("models/net.onnx", b"old")]))
    resolve(server)
    publish(server, layer([("models/net.onnx", b"new")]))
    assert resolve(server).read_bytes() == b"new"


def test_files_of_former_layers_are_replaced_and_removed(server: FileServer) -> None:
    former = {"a": b"1", "b/c": b"2", "b/d": b"3", "e/f": b"4", "g": b"5"}
    publish(
        server,
        layer([(f"models/{name}", body) for name, body in former.items()]),
        layer(
            [("models/a", b"new"), ("models/b/.wh.c", b""), ("models/e/.wh..wh..opq", b"")]
            + [("models/.wh.g", b"")]
        ),
    )
    assert contents(resolve(server)) == {"a": b"new", "b/d": b"3"}


def test_an_index_gives_the_image_of_this_machine(server: FileServer) -> None:
    image = publish(server, layer([("models/net.onnx", b"onnx")]))
    rows = [
        {"digest": "sha256:" + "0" * 64, "platform": {"architecture": "s390x"}},
        {"digest": image, "platform": {"architecture": "amd64"}},
        {"digest": image, "platform": {"architecture": "arm64"}},
    ]
    index = json.dumps({"mediaType": INDEX, "manifests": rows}).encode()
    server.add("/v2/team/net/manifests/v1", index)
    assert resolve(server).read_bytes() == b"onnx"


def test_a_digest_pins_the_manifest(server: FileServer) -> None:
    image = publish(server, layer([("models/net.onnx", b"onnx")]))
    reference = parse_reference(f"oci://{server.host}/team/net@{image}")
    assert reference is not None
    assert download(reference).read_bytes() == b"onnx"
    server.add(f"/v2/team/net/manifests/{image}", b'{"layers": [{}]}')
    with pytest.raises(StartError):
        open_source("oci").list_files(reference)


def test_a_token_is_fetched_with_the_credentials_of_docker(
    server: FileServer, cdn: FileServer, tmp_path: Path
) -> None:
    publish(server, layer([("models/net.onnx", b"onnx")]))
    routes, pair = dict(server.routes), base64.b64encode(b"me:secret").decode()
    (tmp_path / "docker").mkdir()
    config = {"auths": {server.host: {"auth": pair}}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    challenge = f'Bearer realm="{server.url}/token",service="reg",scope="repository:team/net:pull"'

    def guarded(request: Request) -> Reply:
        reply = routes[request.path]
        assert isinstance(reply, Reply)
        if request.headers.get("authorization") == "Bearer t":
            if "/blobs/" in request.path:
                cdn.routes["/blob"] = reply
                return Reply(status=307, headers={"Location": f"{cdn.url}/blob"})
            return reply
        return Reply(status=401, headers={"WWW-Authenticate": challenge})

    server.routes = dict.fromkeys(routes, guarded)
    server.routes["/token"] = Reply(b'{"token": "t"}')
    assert resolve(server).read_bytes() == b"onnx"
    (asked, *_) = server.asked("/token")
    assert asked.headers["authorization"] == f"Basic {pair}"
    assert asked.path == "/token?service=reg&scope=repository:team/net:pull"
    assert all("authorization" not in request.headers for request in cdn.requests)


def test_a_refusal_tells_how_to_log_in(server: FileServer) -> None:
    server.routes["/v2/team/net/manifests/v1"] = Reply(status=401)
    with pytest.raises(StartError, match="answers 401 .*; log in with `docker login HOST`"):
        resolve(server)


def test_a_token_service_without_encryption_is_refused(server: FileServer) -> None:
    reply = Reply(status=401, headers={"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'})
    server.routes["/v2/team/net/manifests/v1"] = reply
    with pytest.raises(StartError, match="names 'file:///etc/passwd' for tokens"):
        resolve(server)


HOSTILE: dict[str, tuple[list[Entry], str]] = {
    "path escape": ([("models/../../x", b"x")], "which is no contained path"),
    "path escape behind a link": (
        [link("models/a", "."), ("models/a/x", b"x")],
        "has a file behind a link",
    ),
    "absolute link": ([link("models/a", "/etc/passwd")], "has a link out of /models"),
    "relative link": ([link("models/a", "../x")], "has a link out of /models"),
    "link by a detour": (
        [link("models/a", "."), link("models/b", "a/../x")],
        "has a link out of /models",
    ),
    "links in a circle": (
        [link("models/a", "b"), link("models/b", "a")],
        "has a link out of /models",
    ),
    "hard link": ([link("models/a", "etc/passwd", tarfile.LNKTYPE)], "has a link out of /models"),
    "models is a link": ([link("models", "etc")], "has a /models that is no directory"),
    "missing hard link": ([link("models/a", "models/b", tarfile.LNKTYPE)], "is no tar"),
    "nothing in models": ([("etc/x", b"x")], "has no directory /models"),
    "only a device": ([link("models/null", "", tarfile.CHRTYPE)], "has no directory /models"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_layer_leaves_nothing(server: FileServer, tmp_path: Path, case: str) -> None:
    entries, text = HOSTILE[case]
    publish(server, layer(entries))
    with pytest.raises((StartError, NotFound), match=text):
        resolve(server)
    left = [path for path in (tmp_path / "cache" / "models" / "oci").rglob("*") if path.is_file()]
    assert {path.parent.name for path in left} <= {"layers"}
    assert not (tmp_path / "x").exists()


def test_a_layer_that_unpacks_to_far_more_is_refused(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci, "_FREE_BYTES", 1000)
    publish(server, layer([("models/net.onnx", bytes(2_000_000))]))
    with pytest.raises(StartError, match="unpacks to over 50 times its size"):
        resolve(server)


def test_a_layer_that_declares_a_huge_file_is_refused(server: FileServer) -> None:
    huge = tarfile.TarInfo("models/net.onnx")
    huge.size = 1 << 50
    publish(server, huge.tobuf())
    with pytest.raises(StartError, match="unpacks to over 50 times its size"):
        resolve(server)


def test_a_layer_with_too_many_entries_is_refused(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci, "_MAX_ENTRIES", 10)
    publish(server, layer([(f"models/{number}", b"") for number in range(11)]))
    with pytest.raises(StartError, match="has over 10 entries"):
        resolve(server)


def test_a_layer_with_a_huge_header_is_refused_unread(server: FileServer) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    publish(server, gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(10_000)))
    with pytest.raises(StartError, match="an extended header has 4294967296 bytes"):
        resolve(server)


@pytest.mark.parametrize(
    "body",
    [b"no tar", gzip.compress(b"no", mtime=0)[:-4], b"\x28\xb5\x2f\xfd zstd"],
    ids=["text", "cut gzip", "zstd"],
)
def test_a_layer_that_is_no_tar_is_refused(server: FileServer, body: bytes) -> None:
    publish(server, body)
    with pytest.raises(StartError, match=r"\(application/vnd.oci.image.layer.*\) is no tar"):
        resolve(server)


def test_a_missing_tag_is_answered_with_the_tag_that_is_near(server: FileServer) -> None:
    server.routes["/v2/team/net/tags/list"] = Reply(b'{"tags": ["v1.20", "latest"]}')
    with pytest.raises(NotFound, match=r"has no oci://.*:lates; did you mean 'latest'\?$"):
        resolve(server, tag="lates")


def test_a_name_without_a_registry_is_refused() -> None:
    reference = parse_reference("oci://team/net:v1")
    assert reference is not None
    with pytest.raises(InvalidInputs, match="names no registry, expected oci://REGISTRY/"):
        download(reference)


def test_an_unpacked_image_is_listed_and_removed(server: FileServer) -> None:
    image = publish(server, layer([("models/net.onnx", b"onnx")]))
    path = resolve(server)
    (model,) = open_source("oci").list_cached()
    assert (str(model.reference), model.revision) == (f"oci://{server.host}/team/net:v1", image)
    assert open_source("oci").remove_cached(model.reference) > 0
    assert not path.exists()
