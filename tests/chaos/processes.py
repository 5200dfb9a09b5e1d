"""Processes as /proc shows them: those that a server started, what they hold, what they cost.

A server and all that it starts carry a mark in their environment, which survives new groups,
sessions and parents; so what is left behind is found wherever it went.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.e2e.harness import is_alive

MARK = "CHAOS_SERVER"
_TICKS = os.sysconf("SC_CLK_TCK")
_WORKER = b"mindspore_serving.worker"
_PREPARING = b"mindspore_serving.llm.processing.child"


def marked(mark: str) -> list[int]:
    """The living processes that carry `mark`; zombies have no environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def kill_marked(mark: str) -> None:
    """End all of them, and what they start meanwhile."""
    while pids := [pid for pid in marked(mark) if is_alive(pid)]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    """0 of a process that has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def servable_of(pid: int) -> str:
    """The servable that `pid` is a worker of; "" if it is no worker."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if _WORKER in words and b"--name" in words:
            title = words[words.index(b"--name") + 1].decode()
            return title.partition(",")[0].rpartition(" ")[2]
    return ""


def runs_python(pid: int) -> bool:
    """Whether the interpreter of `pid` has begun: signals that it ignores do no harm any more."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & 1 << signal.SIGPIPE - 1)
    return False


def prepares(pid: int) -> bool:
    """Whether `pid` prepares requests of a language model, or forks processes that do."""
    with suppress(OSError):
        return _PREPARING in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def peak_memory(pid: int) -> int:
    """The most resident bytes since `forget_peak`; 0 of a process that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def forget_peak(pid: int) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def seconds_of_cpu(pid: int) -> float:
    """Of all its threads, since its start; 0 of a process that has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
