"""Model files at an address, by names as operators write them."""

import base64
import hashlib
from pathlib import Path

import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import Reference, parse_reference
from mindspore_serving.hub.resolve import download
from mindspore_serving.hub.source import open_source
from tests.hub.servers import FileServer, Reply

BODY = b"a model" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


def resolve(name: str, *, offline: bool = False) -> str:
    """Resolve a name as a new process does."""
    reference = parse_reference(name)
    assert reference is not None
    return str(download(reference, offline=offline))


def test_a_file_is_downloaded_once_and_listed(server: FileServer) -> None:
    server.add("/models/net.onnx", BODY)
    name = f"{server.url}/models/net.onnx"
    path = resolve(name)
    assert Path(path).read_bytes() == BODY
    assert Path(path).name == "net.onnx"
    assert resolve(name) == path
    assert len(server.asked("/models/net.onnx")) == 1
    (model,) = open_source("http").list_cached()
    assert str(model.reference) == name
    assert model.size >= len(BODY)


def test_a_changed_file_is_downloaded_again(server: FileServer) -> None:
    server.add("/net.onnx", BODY)
    resolve(f"{server.url}/net.onnx")
    server.add("/net.onnx", BODY[::-1])
    assert Path(resolve(f"{server.url}/net.onnx")).read_bytes() == BODY[::-1]


def test_an_unreachable_server_leaves_the_earlier_download(server: FileServer) -> None:
    server.add("/net.onnx", BODY)
    path = resolve(f"{server.url}/net.onnx")
    server.routes["/net.onnx"] = Reply(status=503, headers={"Retry-After": "600"})
    assert resolve(f"{server.url}/net.onnx") == path
    server.requests.clear()
    assert resolve(f"{server.url}/net.onnx", offline=True) == path
    assert server.requests == []


def test_a_hash_behind_the_address_is_checked(server: FileServer) -> None:
    server.add("/net.onnx", BODY)
    assert Path(resolve(f"{server.url}/net.onnx#sha256={SHA256}")).read_bytes() == BODY
    server.add("/net.onnx", BODY[::-1])
    with pytest.raises(StartError, match=f"expected {SHA256}"):
        resolve(f"{server.url}/net.onnx?new#sha256={SHA256}")
    with pytest.raises(InvalidInputs, match="ends with #md5=1, expected #sha256=HEX"):
        resolve(f"{server.url}/net.onnx#md5=1")


def test_an_address_that_refuses_head_is_downloaded(server: FileServer) -> None:
    file = Reply(BODY, headers={"ETag": '"1"'})
    server.routes["/net.onnx"] = lambda asked: Reply(status=403) if asked.verb == "HEAD" else file
    assert Path(resolve(f"{server.url}/net.onnx")).read_bytes() == BODY


def test_credentials_come_from_netrc_and_not_from_the_address(
    server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "none").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "none").chmod(0o600)
    server.add("/net.onnx", BODY)
    resolve(f"{server.url}/net.onnx")
    assert {request.headers["authorization"] for request in server.requests} == {
        f"Basic {base64.b64encode(b'me:secret').decode()}"
    }
    with pytest.raises(InvalidInputs, match="^an address has no credentials; write those"):
        resolve(f"http://me:secret@{server.host}/net.onnx")


def test_a_missing_file_is_named(server: FileServer) -> None:
    with pytest.raises(NotFound, match=f"^{server.host} has no http://{server.host}/net.onnx$"):
        resolve(f"{server.url}/net.onnx")


@pytest.mark.parametrize(
    ("path", "disposition", "expected"),
    [
        ("/a/net%20work.onnx", "", "net_work.onnx"),
        ("/download?id=1", "attachment; filename=../../etc/net.onnx", "net.onnx"),
        ("/..%2F..%2F.bashrc", "", "bashrc"),
    ],
)
def test_the_name_of_the_file_is_contained(
    server: FileServer, path: str, disposition: str, expected: str
) -> None:
    headers = {"Content-Disposition": disposition} if disposition else {}
    server.routes = dict.fromkeys(
        ("/a/net work.onnx", "/download", "/../../.bashrc"), Reply(BODY, headers=headers)
    )
    source = open_source("http")
    reference = Reference("http", f"{server.host}{path}")
    listing = source.list_files(reference)
    target = source.fetch(reference, listing, listing.files, lambda count: None)
    assert (target.name, target.read_bytes()) == (expected, BODY)


def test_a_download_is_removed(server: FileServer) -> None:
    server.add("/net.onnx", BODY)
    path = Path(resolve(f"{server.url}/net.onnx"))
    reference = parse_reference(f"{server.url}/net.onnx")
    assert reference is not None
    assert open_source("http").remove_cached(reference) > len(BODY)
    assert not path.exists()
    assert open_source("http").find_cached(reference) is None


def test_an_address_without_a_model_file_is_that_of_a_server() -> None:
    assert parse_reference("http://127.0.0.1:8000/v1") is None
    assert parse_reference("http://host/net.onnx?x=1") == Reference("http", "host/net.onnx?x=1")
