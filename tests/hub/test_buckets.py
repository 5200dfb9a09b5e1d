"""Buckets of S3, Google and Azure, by the library of the product against servers on sockets."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.hub.resolve import download
from mindspore_serving.hub.source import Unreachable, open_source
from tests.hub.servers import FileServer, Reply, Request

DATE = "Fri, 01 Jan 2027 00:00:00 GMT"
FILES = {
    "team/net.onnx": b"onnx" * 1000,
    "team/qwen/config.json": b"{}",
    "team/qwen/model.safetensors": bytes(range(256)) * 3000,
    "team/qwen/pytorch_model.bin": b"pickle",
    "team/qwen2/config.json": b"{}",
}
SCHEMES = ("s3", "gs", "az")


@pytest.fixture(autouse=True)
def variables(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of operators that name the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    account = "AccountName=acc;AccountKey=c2VjcmV0"
    endpoint = f"BlobEndpoint={server.url}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{account};{endpoint}")


def rows_of_s3(keys: list[str], files: dict[str, bytes]) -> str:
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(files[key])}</Size>"
        f"<ETag>{hash(files[key])}</ETag><LastModified>2027-01-01T00:00:00Z</LastModified>"
        "</Contents>"
        for key in keys
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"


def rows_of_azure(keys: list[str], files: dict[str, bytes]) -> str:
    rows = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{DATE}</Last-Modified>"
        f"<Content-Length>{len(files[key])}</Content-Length><Etag>{hash(files[key])}</Etag>"
        "<Content-Type>x/y</Content-Type></Properties></Blob>"
        for key in keys
    )
    return f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>"


def publish(server: FileServer, files: dict[str, bytes] = FILES) -> None:
    def listed(request: Request) -> Reply:
        query = parse_qs(urlsplit(request.path).query)
        prefix = query.get("prefix", [""])[0]
        keys = [key for key in files if key.startswith(prefix)]
        is_azure = query.get("comp") == ["list"]
        rows = rows_of_azure(keys, files) if is_azure else rows_of_s3(keys, files)
        body = f'<?xml version="1.0" encoding="utf-8"?>{rows}'.encode()
        return Reply(body, headers={"Content-Type": "application/xml"})

    server.routes = {"/bucket": listed}
    for key, body in files.items():
        reply = server.add(f"/bucket/{key}", body)
        reply.headers |= {"Last-Modified": DATE, "x-ms-blob-type": "BlockBlob"}


def resolve(name: str, *, offline: bool = False) -> Path:
    reference = parse_reference(name)
    assert reference is not None
    return download(reference, offline=offline)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_object_is_downloaded_once(server: FileServer, scheme: str) -> None:
    publish(server)
    name = f"{scheme}://bucket/team/net.onnx"
    path = resolve(name)
    assert (path.name, path.read_bytes()) == ("net.onnx", FILES["team/net.onnx"])
    assert resolve(name) == resolve(name, offline=True) == path
    assert len(server.asked("/bucket/team/net.onnx", "GET")) == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_prefix_is_a_directory_of_needed_files(server: FileServer, scheme: str) -> None:
    publish(server)
    path = resolve(f"{scheme}://bucket/team/qwen")
    names = {file.name for file in path.iterdir() if not file.name.startswith(".")}
    assert names == {"config.json", "model.safetensors"}
    assert (path / "model.safetensors").read_bytes() == FILES["team/qwen/model.safetensors"]
    server.requests.clear()
    assert resolve(f"{scheme}://bucket/team/qwen", offline=True) == path
    assert server.requests == []


def test_requests_are_signed(server: FileServer) -> None:
    publish(server)
    resolve("s3://bucket/team/net.onnx")
    signed = [request.headers["authorization"] for request in server.requests]
    assert all(text.startswith("AWS4-HMAC-SHA256 Credential=key/") for text in signed)
    server.requests.clear()
    resolve("az://bucket/team/net.onnx")
    assert all(
        request.headers["authorization"].startswith("SharedKey acc:") for request in server.requests
    )


def test_keys_come_from_the_profile_of_amazons_files(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=a\naws_secret_access_key=b\n"
        "[work]\naws_access_key_id=mine\naws_secret_access_key=b\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = eu-west-3\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    resolve("s3://bucket/team/net.onnx")
    signed = server.requests[0].headers["authorization"]
    assert "Credential=mine/" in signed
    assert "/eu-west-3/s3/" in signed


def test_a_changed_object_is_downloaded_again(server: FileServer) -> None:
    publish(server)
    path = resolve("s3://bucket/team/net.onnx")
    changed = FILES["team/net.onnx"][::-1]
    publish(server, {"team/net.onnx": changed})
    assert resolve("s3://bucket/team/net.onnx") == path
    assert path.read_bytes() == changed


def test_a_partial_object_is_resumed_by_a_range(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindspore_serving.hub.sources.buckets._CHUNK", 1 << 16)
    monkeypatch.setattr("mindspore_serving.hub.sources.buckets._RETRIES", {"max_retries": 0})
    publish(server)
    key, body = "team/qwen/model.safetensors", FILES["team/qwen/model.safetensors"]
    reply = server.routes[f"/bucket/{key}"]
    assert isinstance(reply, Reply)
    reply.cuts += [1 << 19] + [0] * 40
    with pytest.raises(Unreachable, match=f"s3://bucket/{key} cannot be read: "):
        resolve(f"s3://bucket/{key}")
    reply.cuts.clear()
    server.requests.clear()
    (partial,) = tmp_path.rglob("*.incomplete")
    size = partial.stat().st_size
    assert size >= 1 << 16
    assert resolve(f"s3://bucket/{key}").read_bytes() == body
    (asked,) = server.asked(f"/bucket/{key}")
    assert asked.headers["range"] == f"bytes={size}-"
    assert asked.headers["if-match"] == reply.headers["ETag"]


def test_a_missing_object_is_named(server: FileServer) -> None:
    publish(server)
    with pytest.raises(NotFound, match=r"^s3://bucket/nothing is neither an object nor a prefix"):
        resolve("s3://bucket/nothing")


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_refusal_names_the_variables(server: FileServer, scheme: str, variable: str) -> None:
    server.routes["/bucket/a"] = Reply(status=403)
    with pytest.raises(StartError, match=f"^{scheme}://bucket/a is refused: .*{variable}"):
        resolve(f"{scheme}://bucket/a")


def test_an_unreachable_server_leaves_the_earlier_download(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server)
    path = resolve("s3://bucket/team/net.onnx")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("mindspore_serving.hub.sources.buckets._RETRIES", {"max_retries": 0})
    assert resolve("s3://bucket/team/net.onnx") == path


def test_azure_without_an_account_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidInputs, match="az://bucket needs the name of its account"):
        resolve("az://bucket/a")


def test_too_many_objects_are_refused(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server)
    monkeypatch.setattr("mindspore_serving.hub.sources.buckets._MAX_OBJECTS", 2)
    with pytest.raises(StartError, match="s3://bucket/team has over 2 objects"):
        resolve("s3://bucket/team")


def test_a_download_is_listed_and_removed(server: FileServer) -> None:
    publish(server)
    path = resolve("s3://bucket/team/qwen")
    (model,) = open_source("s3").list_cached()
    assert str(model.reference) == "s3://bucket/team/qwen"
    assert open_source("s3").remove_cached(model.reference) > 768_000
    assert not path.exists()
