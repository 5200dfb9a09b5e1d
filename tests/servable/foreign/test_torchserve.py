"""TorchServe's archives: the manifest, the configuration, and limits of the zip file."""

import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.servable import archive
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.torchserve import MANIFEST

MODEL = {"modelName": "net", "serializedFile": "net.pt", "handler": "image_classifier"}


def write(tmp_path: Path, model: object, **members: bytes | str) -> str:
    path = tmp_path / "net.mar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps({"runtime": "python", "model": model}))
        for name, content in ({"net.pt": b"model"} | members).items():
            file.writestr(name, content)
    return str(path)


def read(path: str) -> ForeignModel:
    model = formats.read(path)
    assert model is not None
    return model


def test_the_serialized_file_is_the_model_and_the_handler_is_named(tmp_path: Path) -> None:
    model = read(write(tmp_path, MODEL))
    assert model.model is not None
    assert (model.model.format, model.model.member) == ("pytorch", "net.pt")
    assert model.options == {"alias": "net"}
    assert model.note("net") == (
        "net: without effect here, of TorchServe's MANIFEST.json: handler image_classifier (its "
        "code is not run: requests carry tensors)"
    )


def test_the_configuration_gives_options(tmp_path: Path) -> None:
    yaml = "minWorkers: 2\nbatchSize: 4\nmaxBatchDelay: 20\nresponseTimeout: 120\nmaxWorkers: 4\n"
    model = read(write(tmp_path, MODEL | {"configFile": "c.yaml"}, **{"c.yaml": yaml}))
    assert model.options == {
        "alias": "net",
        "num_parallel_workers": 2,
        "max_batch_delay_ms": 20,
        "stage_timeout": 120,
    }
    assert (model.max_batch_size, model.without_effect[1:]) == (4, ("maxWorkers",))


def test_an_archive_that_is_not_packed_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / MANIFEST).write_text(json.dumps({"model": MODEL}))
    (tmp_path / "net.pt").touch()
    model = read(str(tmp_path))
    assert model.model is not None
    assert model.model.files == ("../net.pt",)


def test_archives_in_a_directory_are_servables(tmp_path: Path) -> None:
    write(tmp_path, MODEL)
    assert discover(str(tmp_path)).servables == [(str(tmp_path), "net.mar")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modelFile": "net.py"}, "modelFile is 'net.py': the class of the model is Python code"),
        ({"serializedFile": "net.bin"}, "serializedFile is 'net.bin', expected one of .pt"),
        ({"serializedFile": "other.pt"}, "net.mar has no member 'other.pt'"),
        ({"serializedFile": "../net.pt"}, "net.mar has no member '../net.pt'"),
        ({"configFile": "c.yaml"}, "net.mar has no member 'c.yaml'"),
    ],
)
def test_a_model_that_needs_its_code_or_has_no_file_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError) as caught:
        read(write(tmp_path, MODEL | changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("yaml", ["- 1", "minWorkers: many", "a: &a [*a, *a]\n", "a: b: c"])
def test_a_configuration_that_is_none_is_an_error(tmp_path: Path, yaml: str) -> None:
    with pytest.raises(StartError, match="model-config.yaml"):
        read(write(tmp_path, MODEL | {"configFile": "c.yaml"}, **{"c.yaml": yaml}))


def test_paths_lead_out_of_no_directory(tmp_path: Path) -> None:
    (tmp_path / "net" / "MAR-INF").mkdir(parents=True)
    (tmp_path / "secret.pt").touch()
    (tmp_path / "net" / "link.pt").symlink_to(tmp_path / "secret.pt")
    for name in ("../secret.pt", "link.pt", str(tmp_path / "secret.pt")):
        manifest = {"model": {"serializedFile": name}}
        (tmp_path / "net" / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(StartError, match="expected a path inside"):
            read(str(tmp_path / "net"))


def test_a_bomb_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, **{"net.pt": bytes(32 << 20)})
    with pytest.raises(StartError, match="expected at most 200 times as many"):
        read(path)


def test_a_manifest_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL | {"extra": "x" * (2 << 20)})
    with pytest.raises(StartError, match="MANIFEST.json has more than 1048576 bytes"):
        read(path)


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "net.mar"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MANIFEST, json.dumps({"model": MODEL}))
        info = zipfile.ZipInfo("net.pt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc/passwd")
    with pytest.raises(StartError, match="member 'net.pt' is not a file"):
        read(str(path))


def test_an_archive_has_a_limit_of_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    with pytest.raises(StartError, match="net.mar has more than 1 members"):
        read(write(tmp_path, MODEL))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"text"])
def test_a_file_that_is_no_archive_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.mar").write_bytes(content)
    with pytest.raises(StartError, match="net.mar is no zip archive"):
        read(str(tmp_path / "net.mar"))


def test_an_archive_with_a_wrong_byte_is_an_error_or_served(tmp_path: Path) -> None:
    path = Path(write(tmp_path, MODEL))
    content = path.read_bytes()
    refused = 0
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 0x55]) + content[index + 1 :])
        try:
            read(str(path))
        except StartError:
            refused += 1
    assert 0 < refused < len(content)  # bytes such as the time of a member do not matter


def test_a_member_is_unpacked_into_memory(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    with archive.unpacked(path, "net.pt") as location:
        assert Path(location).read_bytes() == b"model"
        assert location.endswith("/net.pt")
    assert not Path(location).exists()
    refused = pytest.raises(StartError, match=r"net\.mar/net\.pt is bad")
    with refused, archive.unpacked(path, "net.pt") as location:
        raise StartError(f"{location} is bad")
