"""Writes down, for every Python process with an environment, that it started and what it unpickles.

The interpreter imports `sitecustomize` from PYTHONPATH before anything else.
"""

import os
from pathlib import Path

from tests.e2e.harness import ROOT

_RECORD = "PICKLE_RECORD"
_SOURCE = f"""
import os, pickle, sys

def record(what):
    with open("/proc/self/cmdline") as file:
        words = file.read().replace("\\0", " ").replace("\\n", " ")
    line = f"{{what}}\\t{{words}}\\n".encode()
    descriptor = os.open(os.environ["{_RECORD}"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)

def watch(event, arguments):
    if event == "pickle.find_class":
        record("unpickled " + ".".join(map(str, arguments)))

def watched(name, function):
    def call(*arguments, **options):
        record("unpickled by pickle." + name)
        return function(*arguments, **options)
    return call

class Unpickler(pickle.Unpickler):
    def __init__(self, *arguments, **options):
        record("unpickled by pickle.Unpickler")
        super().__init__(*arguments, **options)

sys.addaudithook(watch)
pickle.load, pickle.loads = watched("load", pickle.load), watched("loads", pickle.loads)
pickle.Unpickler = Unpickler
record("started")
"""


class Record:
    """What processes with `environment` do; its files are in `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(_SOURCE)
        self._file = directory / "record"
        path = os.pathsep.join(map(str, (directory, ROOT)))
        self.environment = {"PYTHONPATH": path, _RECORD: str(self._file)}

    def started(self, words: str) -> int:
        """How many processes have `words` in their command line."""
        return sum(words in line for line in self._lines("started\t"))

    @property
    def unpickled(self) -> list[str]:
        return self._lines("unpickled ")

    def _lines(self, kind: str) -> list[str]:
        return [line for line in self._file.read_text().splitlines() if line.startswith(kind)]
