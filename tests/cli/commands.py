"""Processes as a user starts them: `python -m mindspore_serving ...`, or any command line."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

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
