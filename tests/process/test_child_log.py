"""The files of what workers print: whose they are, how large they get, and what cannot fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_serving.process import child_log
from mindspore_serving.process.child_log import ChildLog
from tests.waiting import eventually


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log_toy.log"


def prints(path, source, *arguments):
    """A process that prints into a log, at its end; the log."""
    log = ChildLog(path)
    command = [sys.executable, "-u", "-c", source, *arguments]
    done = subprocess.Popen(command, stdout=log.writer, stderr=subprocess.STDOUT)
    log.close_writer()
    log.begin()
    assert done.wait(60) == 0, log.tail()
    return log


def test_output_is_in_the_file_while_the_process_runs(path):
    log = ChildLog(path)
    os.write(log.writer, b"hello\n")
    log.begin()
    eventually(lambda: path.exists() and path.read_text() == "hello\n")
    log.close_writer()


def test_only_the_owner_can_read_a_log(path):
    path.write_text("of an older version\n")
    path.chmod(0o644)
    prints(path, "print('hello')").tail()
    assert path.read_text() == "of an older version\nhello\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_are_rotated_and_only_a_few_are_kept(path, monkeypatch):
    monkeypatch.setattr(child_log, "MAX_BYTES", 200_000)
    prints(path, "for i in range(200): print(f'{i:04}' * 1000)").tail()
    eventually(lambda: path.read_text().endswith("0199\n"))
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == ["log_toy.log", "log_toy.log.1", "log_toy.log.2"]
    texts = [(path.parent / name).read_text() for name in reversed(names)]
    assert all(len(text) <= 200_000 for text in texts)
    assert "".join(texts).split("\n")[-3:] == ["0198" * 1000, "0199" * 1000, ""]


@pytest.mark.parametrize("kind", ["full disk", "no directory", "a directory in its place"])
def test_a_process_can_print_wherever_its_log_cannot_be_written(tmp_path, path, kind):
    if kind == "full disk":
        path.symlink_to("/dev/full")
    elif kind == "a directory in its place":
        path.mkdir()
    else:
        path = tmp_path / "nothing" / "log_toy.log"
    log = prints(path, "for i in range(40): print('x' * 100_000)\nprint('the end')")
    assert log.tail().endswith("the end")


def test_a_log_is_written_again_once_the_disk_has_space(path):
    path.symlink_to("/dev/full")
    log = prints(path, "print('lost')")
    log.tail()
    path.unlink()
    prints(path, "print('found')").tail()
    eventually(lambda: path.exists() and path.read_text() == "found\n")


def test_a_process_may_print_more_than_the_size_of_files_allows(path):
    """The limit is inherited by workers; it is ours that writes."""
    source = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "print('x' * 100_000)\nprint('the end')"
    )
    assert prints(path, source).tail().endswith("the end")


def test_the_logs_leave_nothing_open(path):
    prints(path, "print('first')").tail()

    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    eventually(lambda: not child_log._thread()._logs)
    before = num_open()
    for _ in range(10):
        prints(path, "print('another')").tail()
    eventually(lambda: num_open() <= before)
