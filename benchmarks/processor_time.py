"""What processes have had of the processor, from /proc, and processes that burn it."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BURN = "while True: pass"
_TICK = os.sysconf("SC_CLK_TCK")
_neighbours: set[int] = set()


def server_time() -> float:
    """Seconds that our child processes but the neighbours, and theirs, have had so far."""
    children, seconds = _all()
    family = [pid for pid in children[os.getpid()] if pid not in _neighbours]
    for pid in family:
        family += children[pid]
    return sum(seconds[pid] for pid in family)


def master_time() -> float:
    """Those of our child processes alone, without their own."""
    children, seconds = _all()
    return sum(seconds[pid] for pid in children[os.getpid()] if pid not in _neighbours)


def _all() -> tuple[dict[int, list[int]], dict[int, float]]:
    """The children, and the seconds, of each process by its id."""
    children: dict[int, list[int]] = defaultdict(list)
    seconds = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        seconds[pid] = sum(map(int, fields[11:15])) / _TICK
    return children, seconds


@contextmanager
def neighbour(*, is_there: bool) -> Iterator[None]:
    """Processes that burn the time of half of the cores."""
    count = max(1, (os.cpu_count() or 2) // 2) if is_there else 0
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    _neighbours.update(one.pid for one in burners)
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()
