"""Shortages: limits set on running processes, control groups, small file systems.

Each holds inside of a `with` block.
"""

import functools
import os
import resource
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.server import FAKETIME
from tests.e2e.harness import eventually

_GROUPS = Path("/sys/fs/cgroup")


@functools.cache
def _can_mount() -> bool:
    """Whether this process may mount; root in a container may not."""
    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            return False
        subprocess.run(["umount", place], check=True)
        return True


def _can_group() -> bool:
    """Whether this process may make control groups of version 1."""
    group = _GROUPS / "pids" / f"chaos-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError:
        return False
    return (_GROUPS / "memory").is_dir()


_NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "": ("nothing", lambda: True),
    "cgroup": ("memory and pids control groups", _can_group),
    "mount": ("root, to mount a small file system", _can_mount),
    "faketime": ("libfaketime", lambda: bool(FAKETIME)),
}


def missing(need: str) -> str:
    """What this machine has not of the need called so; "" if it has it."""
    words, is_there = _NEEDS[need]
    return "" if is_there() else words


@contextmanager
def limited(pid: int, name: str, soft: int = 0, *, more: int = 0) -> Iterator[None]:
    """RLIMIT_`name` of a running process is `soft` meanwhile, or `more` than what it has."""
    number = getattr(resource, f"RLIMIT_{name}")
    before = resource.prlimit(pid, number)
    resource.prlimit(pid, number, (_address_space(pid) + more if more else soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, number, before)


@contextmanager
def memory_group(pid: int, size: int) -> Iterator[None]:
    """A process is in a control group meanwhile that may have `size` bytes of memory."""
    with _group_of(pid, "memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(size))
        yield


@contextmanager
def task_group(pid: int) -> Iterator[None]:
    """A process is in a control group meanwhile that may have no task more than it has."""
    with _group_of(pid, "pids") as group:
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield


@contextmanager
def _group_of(pid: int, kind: str) -> Iterator[Path]:
    group = _GROUPS / kind / f"chaos-{secrets.token_hex(4)}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield group
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (_GROUPS / kind / "cgroup.procs").write_text(each)
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """No byte is free meanwhile in `directory`, which is a small file system."""
    assert os.path.ismount(directory), directory
    path = directory / "full"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        path.unlink()


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
