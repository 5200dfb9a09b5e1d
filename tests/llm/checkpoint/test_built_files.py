"""Built files are read by later processes, and never trusted when they are damaged."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving.llm.checkpoint import built_files
from mindspore_serving.llm.checkpoint.built_files import key_of, read_or_build

MANY = """
import os, sys
from mindspore_serving.llm.checkpoint.built_files import read_or_build
print("ready", flush=True)
sys.stdin.readline()
for number in range(200):
    content = os.urandom(7) * 3000
    found = read_or_build(f"key{number % 3}", lambda: content, 45_000)
    assert found == found[:7] * 3000, number
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(tmp_path))
    built_files._warn.cache_clear()
    yield tmp_path / built_files.DIRECTORY
    built_files._warn.cache_clear()


def never() -> bytes:
    raise AssertionError("it is built already")


def test_a_file_is_built_once_for_this_user_alone(directory: Path) -> None:
    assert read_or_build("key", lambda: b"content") == b"content"
    assert read_or_build("key", never) == b"content"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in directory.iterdir()] == ["key"]


@pytest.mark.parametrize("damage", [b"", b"content", b"\0" * 80])
def test_a_damaged_built_file_is_built_again(directory: Path, damage: bytes) -> None:
    read_or_build("key", lambda: b"content")
    (directory / "key").write_bytes(damage)
    assert read_or_build("key", lambda: b"other") == b"other"
    assert read_or_build("key", never) == b"other"


def test_every_byte_of_a_built_file_is_checked(directory: Path) -> None:
    read_or_build("key", lambda: b"content")
    stored = (directory / "key").read_bytes()
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1
        (directory / "key").write_bytes(changed)
        assert read_or_build("key", lambda: b"again") == b"again", at
        (directory / "key").write_bytes(stored)


def test_keys_differ_by_version_and_by_the_border_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of((b"ab", b"c")), key_of((b"a", b"bc")), key_of((b"abc",))}
    monkeypatch.setattr("mindspore_serving.__version__", "0")
    assert len(keys | {key_of((b"ab", b"c"))}) == 4


def test_the_built_files_read_longest_ago_are_removed(directory: Path) -> None:
    for name, seconds in (("old", 1), ("read", 2), ("new", 3)):
        read_or_build(name, lambda: bytes(1000))
        os.utime(directory / name, (seconds, seconds))
    read_or_build("read", never)
    read_or_build("last", lambda: bytes(1000), 3500)
    assert {path.name for path in directory.iterdir()} == {"read", "new", "last"}
    read_or_build("large", lambda: bytes(3500), 3500)
    assert not (directory / "large").exists()


def test_an_unfinished_built_file_is_removed_after_an_hour(directory: Path) -> None:
    read_or_build("key", lambda: b"content")
    left, fresh = (directory / f"{name}.unfinished" for name in ("left", "fresh"))
    for path in (left, fresh):
        path.touch()
    os.utime(left, (1, 1))
    read_or_build("other", lambda: b"content")
    assert (left.exists(), fresh.exists()) == (False, True)


def test_processes_that_build_the_same_files_read_them_whole(directory: Path) -> None:
    command = [sys.executable, "-c", MANY]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n")
        assert process.returncode == 0
    assert sum(path.stat().st_size for path in directory.iterdir()) <= 45_000


def test_a_cache_directory_that_all_can_write_is_not_used_and_said_once(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_or_build("key", lambda: b"content")
    directory.chmod(0o777)
    for _ in range(2):
        assert read_or_build("key", lambda: b"mine") == b"mine"
    (line,) = capsys.readouterr().err.splitlines()
    assert "built files are not kept" in line
    assert "only this user can write" in line


def test_a_cache_directory_that_cannot_be_made_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert read_or_build("key", lambda: b"mine") == b"mine"
    (line,) = capsys.readouterr().err.splitlines()
    assert "built files are not kept" in line


def test_a_full_disk_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    for _ in range(2):
        assert read_or_build("key", lambda: b"mine") == b"mine"
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert not list(directory.iterdir())
