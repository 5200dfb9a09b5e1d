"""How much a server holds: memory, descriptors, processes; and whether it is back at a level."""

import time
from contextlib import suppress
from dataclasses import dataclass, field

from tests.chaos.processes import forget_peak, peak_memory, servable_of
from tests.chaos.server import Server
from tests.e2e.harness import memory, open_files, zombies

MIB = 1 << 20
_MORE_FILES = 3  # descriptors by which a process may differ


@dataclass(frozen=True, slots=True)
class Level:
    """By role ("master", "toy", ...): of its largest process, bytes and open descriptors."""

    memory: dict[str, int]
    files: dict[str, int]


@dataclass(slots=True)
class Found:
    growth: int = 0  # bytes, of the process that has grown most
    num_left: int = 0
    problems: list[str] = field(default_factory=list)


def level_of(server: Server) -> Level:
    """As it is now; peaks are counted from here."""
    sizes: dict[str, int] = {}
    files: dict[str, int] = {}
    for pid, role in _roles(server):
        forget_peak(pid)
        with suppress(OSError):
            sizes[role] = max(sizes.get(role, 0), memory(pid))
            files[role] = max(files.get(role, 0), open_files(pid))
    return Level(sizes, files)


def problems_of_level(
    server: Server, before: Level, growth: int, peak: int | None, bound: float
) -> Found:
    """What is still over `before` by more than `growth` bytes after `bound` seconds; what has been
    over it by `peak` MiB; and processes that are left."""
    problems = _peaks(server, before, peak)
    until = time.monotonic() + bound
    while True:
        now = level_of(server)
        found = _compare(server, before, now, growth)
        if not found.problems or time.monotonic() > until:
            break
        time.sleep(0.2)
    found.problems = problems + found.problems
    return found


def _compare(server: Server, before: Level, now: Level, growth: int) -> Found:
    found = Found()
    for role, size in before.memory.items():
        grown = now.memory.get(role, 0) - size
        found.growth = max(found.growth, grown)
        if grown > growth:
            found.problems.append(f"memory of {role}: {size // MIB} MiB, {grown // MIB} MiB more")
        more = now.files.get(role, 0) - before.files[role]
        if more > _MORE_FILES:
            found.problems.append(f"{role} has {more} descriptors more")
    left = server.orphans()
    found.num_left = len(left) + len(zombies(server.pid))
    if found.num_left:
        found.problems.append(f"{found.num_left} processes are left")
    return found


def _peaks(server: Server, before: Level, peak: int | None) -> list[str]:
    if peak is None:
        return []
    grown = [
        (role, (peak_memory(pid) - before.memory.get(role, 0)) // MIB)
        for pid, role in _roles(server)
    ]
    return [f"{role} took {size} MiB meanwhile" for role, size in grown if size > peak]


def _roles(server: Server) -> list[tuple[int, str]]:
    own = [(pid, servable_of(pid)) for pid in server.pids() if pid != server.pid]
    return [(server.pid, "master"), *(pair for pair in own if pair[1])]
