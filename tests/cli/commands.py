"""Processes as a user starts them: `python -m mindspore_serving ...`, or any command line."""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from mindspore_serving.cli import main
from tests.e2e.harness import ROOT, Script
from tests.waiting import PATIENCE

SERVING = (sys.executable, "-m", "mindspore_serving")


def environment() -> dict[str, str]:
    """Ours, in which the package is found without being installed."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "2"}


class Command(Script):
    """A running command line; `lines` is what it printed.  Ended with the `with` block."""

    def __init__(self, words: Sequence[str], directory: Path) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            list(words),
            cwd=directory,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def run(
    words: Sequence[str], directory: Path, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    """A command line that ends by itself."""
    return subprocess.run(
        list(words),
        cwd=directory,
        env=environment(),
        input=stdin,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def call(
    words: Sequence[str], directory: Path, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    """`mindspore-serving WORDS` in this process, which spares the start of another."""
    out, err, before = _text(), _text(), os.getcwd()
    os.chdir(directory)
    try:
        with patch("sys.stdin", _text(stdin)), redirect_stdout(out), redirect_stderr(err):
            status = main(words)
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os.chdir(before)
    told = [stream.buffer.getvalue().decode() for stream in (out, err) if not stream.flush()]
    return subprocess.CompletedProcess(words, status, *told)


class _Text(io.TextIOWrapper):
    buffer: io.BytesIO


def _text(content: str = "") -> _Text:
    """A stream with the bytes that it was written, as of a process."""
    return _Text(io.BytesIO(content.encode()), encoding="utf-8")
