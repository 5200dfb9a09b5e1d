"""Pinning of a worker to processor cores, or to those of a NUMA node, before it loads anything.

Threads that start later have the same cores, and memory that they touch first is of their node.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.core.core_sets import NUMA, parse_core_sets, parse_cores
from mindspore_serving.errors import StartError

_NODES = Path("/sys/devices/system/node")


def pin(cores: str, number: int) -> None:
    """Pin this process, worker `number` of its servable, to its part of the sets `cores`.

    Without sets nothing changes.  Raises StartError for cores that this process may not use.
    """
    if not cores:
        return
    allowed = os.sched_getaffinity(0)
    sets = numa_nodes(allowed) if cores == NUMA else parse_core_sets(cores)
    chosen = sets[number % len(sets)]
    if missing := chosen - allowed:
        raise StartError(
            f"cores {cores!r}: worker {number} would run on {_listed(chosen)}, but it may not use "
            f"{_listed(missing)}, only {_listed(allowed)}"
        )
    for thread in os.listdir("/proc/self/task"):  # those that run already, too
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), chosen)
    log.info("worker %d runs on the cores %s", number, _listed(chosen))


def numa_nodes(allowed: set[int], directory: Path = _NODES) -> Sequence[frozenset[int]]:
    """Return the `allowed` cores of each NUMA node that has any; all if the system has no nodes."""
    paths = sorted(directory.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    lists = [(path / "cpulist").read_text().strip() for path in paths]
    nodes = [parse_cores(text) & allowed for text in lists if text]
    return [node for node in nodes if node] or [frozenset(allowed)]


def _listed(cores: "set[int] | frozenset[int]") -> str:
    return ",".join(map(str, sorted(cores)))
