"""The process of a contender: loaded once, asked for one task after another, at rest in between.

While one computes, the others are stopped by a signal: an engine that spins, or that tidies up,
would take the cores from the one that is measured.
"""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.llm_contenders import Contender
from benchmarks.llm_model import model
from benchmarks.processes import LOGS, ROOT

Reply = dict[str, Any]


@contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Hold the lock of `path`, where a machine is shared by people who agreed on one."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Process:
    """A contender that is running.

    `about` is what it said when it was loaded, and `started` the seconds until then from its start.
    `path` is of the model, by default that of the benchmarks.
    """

    def __init__(self, contender: Contender, lock: Path | None, path: Path | None = None) -> None:
        self.contender = contender
        self._lock = lock
        command = contender.command(path or model(contender.engine, contender.form))
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log = LOGS / f"{contender.name.replace(' ', '_')}.log"
        with self._log.open("wb") as log, alone(lock):
            began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            try:
                self.about = self._read()
            except BaseException:
                self.close()
                raise
            self.started = time.perf_counter() - began
        self._signal(signal.SIGSTOP)

    def ask(self, task: dict[str, Any]) -> Reply:
        """The reply of runners.driving to `task`.  Raises RuntimeError if the process ended."""
        assert self._process.stdin is not None
        with alone(self._lock):
            self._signal(signal.SIGCONT)
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
            reply = self._read()
        self._signal(signal.SIGSTOP)
        return reply

    def processor_seconds(self) -> float:
        """Processor time that it has taken, of all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime

    def close(self) -> None:
        """End it and whatever it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _read(self) -> Reply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.contender.name} ended; see {self._log}")
        reply: Reply = json.loads(line)
        return reply

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def running(contenders: list[Contender], lock: Path | None) -> Iterator[list[Process]]:
    """All of `contenders`, loaded one after another; ended when the block ends."""
    processes: list[Process] = []
    try:
        for contender in contenders:
            processes.append(Process(contender, lock))
        yield processes
    finally:
        for process in processes:
            process.close()
