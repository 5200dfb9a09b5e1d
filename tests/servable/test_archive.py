"""Archives of model directories: what is found in them, and what is refused."""

import copy
import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.servable import archive
from mindspore_serving.servable.discovery import discover

SUFFIXES = ("zip", "tar", "tar.gz", "tgz")
TREES = [  # files of the archive net, and the servables in it
    (["model.onnx"], ["net"]),
    (["net.onnx", "labels.txt"], ["net"]),
    (["1/model.onnx", "2/model.onnx"], ["net"]),
    (["a.onnx", "b.pt2"], ["a.onnx", "b.pt2"]),
    (["first/model.onnx", "second/1/model.onnx"], ["first", "second"]),
    (["inner/model.onnx", "inner/labels.txt"], ["inner"]),
]


def write(path: Path, files: dict[str, bytes]) -> str:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return str(path)
    with tarfile.open(path, "w:gz" if "gz" in path.name else "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def unpack(path: str, directory: Path) -> None:
    directory.mkdir()
    archive.unpack(path, str(directory))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("files", "names"), TREES)
def test_an_archive_is_served_like_its_directory(tmp_path, suffix, files, names):
    path = write(tmp_path / f"net.{suffix}", dict.fromkeys(files, b"model"))
    found = discover(path)
    assert [name for _, name in found.servables] == names
    assert discover(path).servables == found.servables  # it is unpacked once
    for directory, name in found.servables:
        assert Path(directory, name).exists()
        assert not directory.startswith(str(tmp_path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_content_is_unpacked(tmp_path, suffix):
    content = bytes(range(256)) * 9000
    path = write(tmp_path / f"net.{suffix}", {"./a/b.onnx": content, "empty": b""})
    unpack(path, tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b.onnx").read_bytes() == content
    assert (tmp_path / "out" / "empty").read_bytes() == b""


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
@pytest.mark.parametrize(
    "name", ["../net.onnx", "/net.onnx", "a/../../net.onnx", "a//net.onnx", "a\\net.onnx", "a\nb"]
)
def test_names_that_lead_out_are_refused(tmp_path, suffix, name):
    path = write(tmp_path / f"net.{suffix}", {"good.onnx": b"", name: b"model"})
    with pytest.raises(StartError, match="is no path inside the archive"):
        unpack(path, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_of_a_tar_are_refused(tmp_path, kind):
    path = tmp_path / "net.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("net.onnx")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(StartError, match="member 'net.onnx' is not a file"):
        unpack(str(path), tmp_path / "out")


def test_links_of_a_zip_are_refused(tmp_path):
    path = tmp_path / "net.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        info = zipfile.ZipInfo("net.onnx")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(info, "/etc/passwd")
    with pytest.raises(StartError, match="member 'net.onnx' is not a file"):
        unpack(str(path), tmp_path / "out")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [("zip", "expected at most 200 times as many"), ("tar.gz", "bytes when it is unpacked")],
)
def test_a_bomb_is_refused(tmp_path, suffix, text):
    path = write(tmp_path / f"net.{suffix}", {"net.onnx": bytes(20 << 20)})
    with pytest.raises(StartError, match=text):
        unpack(path, tmp_path / "out")


def test_members_that_share_their_bytes_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_SMALL", 1 << 10)
    monkeypatch.setattr(archive, "MAX_RATIO", 2)
    path = tmp_path / "net.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("0", bytes(3000))
        (info,) = zipped.filelist
        for number in range(1, 9):
            same = copy.copy(info)
            same.filename = str(number)
            zipped.filelist.append(same)
        zipped.NameToInfo = {each.filename: each for each in zipped.filelist}
    with pytest.raises(StartError, match="has 27000 bytes when it is unpacked, expected at most"):
        unpack(str(path), tmp_path / "out")


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_more_bytes_than_the_disk_has_are_refused(tmp_path, suffix, monkeypatch):
    path = write(tmp_path / f"net.{suffix}", {"net.onnx": bytes(100)})
    usage = shutil.disk_usage(tmp_path)._replace(free=99)
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StartError, match="has 100 bytes when it is unpacked, 99 are free"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_an_archive_has_a_limit_of_members(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    path = write(tmp_path / f"net.{suffix}", {"a": b"", "b": b""})
    with pytest.raises(StartError, match="has more than 1 members"):
        unpack(path, tmp_path / "out")


def test_a_header_of_a_tar_is_not_read_beyond_its_limit(tmp_path):
    path = tmp_path / "net.tar"
    info = tarfile.TarInfo("@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(StartError, match="a part of it has 8589934592 bytes, expected at most"):
        unpack(str(path), tmp_path / "out")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_archive_is_an_error(tmp_path, suffix):
    path = Path(write(tmp_path / f"net.{suffix}", {"net.onnx": bytes(range(256)) * 40}))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StartError, match=r"net\.\S+ (cannot be unpacked|is no zip archive)"):
        unpack(str(path), tmp_path / "out")


def test_two_members_of_a_name_are_refused(tmp_path):
    path = tmp_path / "net.tar"
    with tarfile.open(path, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("net.onnx"))
    with pytest.raises(StartError, match="member 'net.onnx' cannot be written"):
        unpack(str(path), tmp_path / "out")


def test_an_archive_of_pytorch_is_a_model_and_not_unpacked(tmp_path):
    path = tmp_path / "net.zip"
    path.write_bytes(b"PK\x03\x04" + 26 * b"\0" + b"net/data.pklFB")
    assert discover(str(path)).servables == [(str(tmp_path), "net.zip")]
