"""Main memory of this machine, or of the container that this process runs in.

Reads files of Linux and decides nothing.  `root` is the root directory, for tests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving.errors import StartError

ROOT = Path("/")
_CACHED = ("inactive_file", "active_file")  # of a group's memory, as MemAvailable counts it


@dataclass(frozen=True, slots=True)
class MainMemory:
    """Bytes of main memory: `total`, and `available` without taking any from a process.

    `stalled` is the percentage of the last 10 seconds in which a process waited for memory: the
    larger of the machine's and the container's "some avg10" (pressure stall information); 0 if the
    kernel measures none.
    """

    total: int
    available: int
    stalled: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Limit of a cgroup and its use without cached files, in bytes."""

    limit: int
    used: int


def read_main_memory(root: Path = ROOT) -> MainMemory:
    """Return the memory of the machine, or of the tightest cgroup of this process.

    Raises StartError if the machine does not tell.
    """
    total, available = _read_meminfo(root / "proc/meminfo")
    group = read_group(root)
    if group is not None and group.limit < total:
        total, available = group.limit, min(available, group.limit - group.used)
    files = [root / "proc/pressure/memory"]
    files += [directory / "memory.pressure" for directory in _directories(root)]
    return MainMemory(total, max(0, available), max(map(_read_pressure, files)))


def read_group(root: Path = ROOT) -> GroupMemory | None:
    """Return the cgroup of this process, or above it, with the least room; None without a limit."""
    groups = [group for directory in _directories(root) if (group := _read_group(directory))]
    return min(groups, key=lambda group: group.limit - group.used, default=None)


def _directories(root: Path) -> Iterator[Path]:
    """Iterate over the directories of this process's cgroups, the innermost first.

    In a container the path of the group may be that of the machine, which is not mounted.
    """
    for mount, path in _paths(root):
        group = mount / path.lstrip("/")
        while group != mount:
            yield group
            group = group.parent
        yield mount


def _paths(root: Path) -> Iterator[tuple[Path, str]]:
    """Iterate over (mount, path in it) of the memory controller, of cgroup versions 2 and 1."""
    mount = root / "sys/fs/cgroup"
    lines = (_read(root / "proc/self/cgroup") or "0::/").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield mount, path
        elif "memory" in controllers.split(","):
            yield mount / "memory", path


def _read_group(directory: Path) -> GroupMemory | None:
    for limit_name, used_name, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit, used = _read(directory / limit_name), _read(directory / used_name)
        if limit and used and limit.isdigit() and used.isdigit():  # else "max", for no limit
            lines = (_read(directory / "memory.stat") or "").splitlines()
            rows = dict(line.split() for line in lines)
            cached = sum(int(rows.get(prefix + name, 0)) for name in _CACHED)
            return GroupMemory(int(limit), max(0, int(used) - cached))
    return None


def _read_meminfo(path: Path) -> tuple[int, int]:
    """Return the total and the available bytes."""
    rows = {}
    for line in (_read(path) or "").splitlines():
        name, _, rest = line.partition(":")
        rows[name] = rest.split()
    try:
        return int(rows["MemTotal"][0]) * 1024, int(rows["MemAvailable"][0]) * 1024
    except (KeyError, IndexError, ValueError):
        raise StartError(f"{path} has no MemTotal and MemAvailable; set kv_cache_memory") from None


def _read_pressure(path: Path) -> float:
    """Return avg10 of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`."""
    words = (_read(path) or "").split()
    if len(words) < 2 or words[0] != "some":
        return 0.0
    name, _, value = words[1].partition("=")
    try:
        return float(value) if name == "avg10" else 0.0
    except ValueError:
        return 0.0


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # also ENOTSUP, where the kernel was started without pressure information
        return None
