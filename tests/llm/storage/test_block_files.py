"""Blocks as files: what is read back, what goes, and what a process that was killed leaves."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.storage.block_threads import BlockThreads
from mindspore_serving.llm.storage.fingerprint import fingerprint
from mindspore_serving.llm.storage.stores import open_disk
from mindspore_serving.stores import file_hashes
from mindspore_serving.stores.file_store import (
    SUFFIX,
    UNFINISHED,
    open_directory,
)
from mindspore_serving.stores.sealing import HEAD_BYTES
from tests.waiting import PATIENCE, eventually

SIZE = 100
FILE = HEAD_BYTES + SIZE


@pytest.fixture
def warnings_logged(monkeypatch):
    found = []
    monkeypatch.setattr(log, "warning", lambda text, *args: found.append(text % args))
    return found


def files(directory, most=1000 * FILE, model=b"model"):
    return open_disk(open_directory(directory), model, SIZE, most)


def block(number):
    return memoryview(bytes([number]) * SIZE)


def digest(number):
    return bytes([number]) * 16


def names(directory, suffix=SUFFIX):
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


def test_a_block_is_read_back_with_the_same_model(tmp_path):
    files(tmp_path).write(digest(1), block(1))
    assert bytes(files(tmp_path).read(digest(1))) == bytes(block(1))
    assert files(tmp_path).has(digest(1))
    assert files(tmp_path).read(digest(2)) is None
    assert files(tmp_path, model=b"other").read(digest(1)) is None


def test_files_are_of_the_user_alone(tmp_path):
    directory = tmp_path / "new"
    files(directory).write(digest(1), block(1))
    assert directory.stat().st_mode & 0o777 == 0o700
    (path,) = directory.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: content[:-1] + b"x",
        lambda content: b"x" + content[1:],
        lambda content: b"",
        lambda content: b"x" * FILE,
    ],
)
def test_a_damaged_file_is_not_read_but_removed(tmp_path, damage, warnings_logged):
    own = files(tmp_path)
    own.write(digest(1), block(1))
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert own.read(digest(1)) is None
    assert not path.exists()
    assert "is damaged" in warnings_logged[0]


def test_a_file_under_the_name_of_another_block_is_not_read(tmp_path):
    own = files(tmp_path)
    own.write(digest(1), block(1))
    (path,) = tmp_path.iterdir()
    own.write(digest(2), block(2))
    (other,) = set(tmp_path.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    assert own.read(digest(1)) is None
    assert own.read(digest(2)) is not None


def test_a_link_is_not_followed(tmp_path):
    own = files(tmp_path / "cache")
    own.write(digest(1), block(1))
    (path,) = (tmp_path / "cache").iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert own.read(digest(1)) is None


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_directories_and_fifos_are_neither_read_nor_waited_for(tmp_path, make, warnings_logged):
    own = files(tmp_path, most=4 * FILE)
    own.write(digest(1), block(1))
    (path,) = tmp_path.iterdir()
    path.unlink()
    make(path)
    make(tmp_path / f"{'0' * 32}abcdefgh{UNFINISHED}")
    open_before = os.listdir("/proc/self/fd")
    assert own.read(digest(1)) is None
    assert len(warnings_logged) == 1
    for number in range(2, 12):
        own.write(digest(number), block(number))
    assert own.read(digest(11)) is not None
    assert os.listdir("/proc/self/fd") == open_before


def test_the_least_recently_used_files_are_evicted(tmp_path):
    own = files(tmp_path, most=16 * FILE)
    for number in range(16):
        own.write(digest(number), block(number))
        own.touch(digest(number), number)
    own.touch(digest(0))  # it was used
    own.write(digest(100), block(100))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total <= 16 * FILE
    assert own.has(digest(0))
    assert own.has(digest(100))
    assert not own.has(digest(1))
    assert own.has(digest(15))


def test_reading_a_block_is_a_use(tmp_path):
    own = files(tmp_path)
    own.write(digest(1), block(1))
    own.touch(digest(1), 5)
    (path,) = tmp_path.iterdir()
    own.read(digest(1))
    assert path.stat().st_mtime_ns > 5


@pytest.mark.parametrize("most", [1, 2, 3, 9, 40])
def test_all_files_together_stay_within_the_limit(tmp_path, most):
    owns = [files(tmp_path, most * FILE), files(tmp_path, most * FILE, b"other")]
    for number in range(100):
        owns[number % 2 if most > 8 else 0].write(digest(number), block(number))
        assert len(names(tmp_path)) <= most
    assert len(names(tmp_path)) >= most // 2


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    others = [tmp_path / f"notes{suffix}" for suffix in (".txt", SUFFIX, UNFINISHED)]
    for path in others:
        path.write_text("mine")
    own = files(tmp_path, most=2 * FILE)
    for number in range(9):
        own.write(digest(number), block(number))
    assert [path.read_text() for path in others] == ["mine"] * 3


WRITER = """
import os, sys, time
from tests.llm.storage.test_block_files import block, digest, files
own = files(__import__("pathlib").Path(sys.argv[1]))
own.write(digest(1), block(1))
os.rename = lambda *paths: (print("writing", flush=True), time.sleep(1e6))
own.write(digest(2), block(2))
"""


def test_unfinished_files_of_killed_processes_are_removed(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "writing\n"
            files(tmp_path).write(digest(3), block(3))
            assert len(names(tmp_path, UNFINISHED)) == 1
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    files(tmp_path).write(digest(4), block(4))
    assert names(tmp_path, UNFINISHED) == []
    for number in (1, 3, 4):
        assert bytes(files(tmp_path).read(digest(number))) == bytes(block(number))
    assert files(tmp_path).read(digest(2)) is None


def test_a_full_disk_is_logged_once_and_leaves_nothing(tmp_path, monkeypatch, warnings_logged):
    threads = BlockThreads(files(tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *paths: (_ for _ in ()).throw(full))
        for number in range(5):
            threads.write(digest(number), block(number))
        eventually(lambda: not threads.is_writing)
    assert list(tmp_path.iterdir()) == []
    threads.write(digest(9), block(9))
    eventually(lambda: not threads.is_writing)
    threads.close(PATIENCE)
    assert len(warnings_logged) == 1
    assert "No space left" in warnings_logged[0]
    assert threads.level.counts.bytes_written == FILE
    assert threads.level.counts.errors == 5
    assert files(tmp_path).has(digest(9))


def test_a_directory_writable_by_other_users_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(StartError, match="no other user can write"):
        open_directory(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="prefix_cache_dir is .*file"):
        open_directory(tmp_path / "file")


def test_a_limit_smaller_than_a_block_is_refused(tmp_path):
    with pytest.raises(StartError, match=f"prefix_cache_disk is 9 bytes, expected at least {FILE}"):
        files(tmp_path, most=9)


def test_a_changed_byte_changes_the_fingerprint(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights = model / "model.safetensors"
    weights.write_bytes(b"weights")
    first = fingerprint(model, tmp_path)
    times = weights.stat().st_atime_ns, weights.stat().st_mtime_ns
    (tmp_path / "written").write_bytes(b"weighty")  # as long, and as old
    os.utime(tmp_path / "written", ns=times)
    (tmp_path / "written").rename(weights)
    second = fingerprint(model, tmp_path)
    assert second != first
    weights.write_bytes(b"weights")
    assert fingerprint(model, tmp_path) == first
    (model / "config.json").write_text('{"rope_theta": 1}')
    assert fingerprint(model, tmp_path) != first


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"/": 5}'),
        lambda path: path.write_bytes(b"\xff"),
        Path.mkdir,
        os.mkfifo,
    ],
)
def test_a_broken_list_of_checkpoints_is_ignored(tmp_path, spoil):
    checkpoint = tmp_path / "model.gguf"
    checkpoint.write_bytes(b"x")
    expected = fingerprint(checkpoint, tmp_path)
    (tmp_path / file_hashes.REMEMBERED).unlink()
    spoil(tmp_path / file_hashes.REMEMBERED)
    assert fingerprint(checkpoint, tmp_path) == expected
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    first = fingerprint(model, tmp_path)
    monkeypatch.setattr(file_hashes, "_hash", None)
    assert fingerprint(model, tmp_path) == first
    monkeypatch.undo()
    (tmp_path / file_hashes.REMEMBERED).write_text("damaged")
    assert fingerprint(model, tmp_path) == first
