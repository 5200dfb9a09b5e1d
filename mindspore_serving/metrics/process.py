"""What this process uses, as Linux counts it."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")  # in a second
_FIRST = 3  # the number of the first field of /proc/PID/stat behind the name, see proc(5)
_START, _VIRTUAL, _RESIDENT = (number - _FIRST for number in (22, 23, 24))


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processor time, bytes in RAM, open descriptors."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    num_open_files: int = 0


def usage() -> Usage:
    times = os.times()
    resident = int(_stat()[_RESIDENT]) * resource.getpagesize()
    num_open = len(os.listdir("/proc/self/fd")) - 1  # but for that of the directory
    return Usage(times.user + times.system, resident, num_open)


def virtual_bytes() -> int:
    """The size of the address space."""
    return int(_stat()[_VIRTUAL])


def most_open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def start_time() -> float:
    """Seconds since 1970."""
    lines = Path("/proc/stat").read_text().splitlines()
    (booted,) = [line for line in lines if line.startswith("btime ")]
    return float(booted.split()[1]) + int(_stat()[_START]) / _TICKS


def _stat() -> list[str]:
    """The fields behind the name, which may have spaces in it."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()
