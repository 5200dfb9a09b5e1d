"""Values as files of one directory, which several processes may share.

A file is written under a temporary name and renamed when it is complete.  The least recently used
files are evicted when the total would exceed the limit.  Files with names of another form are left
alone.  Knows no thread, no engine, and not what is in the files.

    <name>XXXXXXXX.unfinished  --rename-->  <name>.block  --evicted or removed-->  gone
        locked by its writer; removed once nobody holds the lock
"""

import errno
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import mkstemp

from mindspore_serving import log
from mindspore_serving.errors import StartError, reason
from mindspore_serving.stores.bounds import StoreBounds

SUFFIX, UNFINISHED = ".block", ".unfinished"
WRITABLE_BY_OTHER_USERS = 0o022
_NAMES = re.compile(rf"[0-9a-f]{{32}}(\w{{8}}{re.escape(UNFINISHED)}|{re.escape(SUFFIX)})")


def open_directory(path: str | Path, option: str = "prefix_cache_dir") -> Path:
    """Return the directory `path` of an option, created with mode 0700 if it is missing.

    Raises StartError if it cannot be created, or if other users may write to it: they could put
    values of their choice into the store.
    """
    directory = Path(path).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise StartError(
            f"{option} is {str(path)!r}, which cannot be created: {reason(error)}"
        ) from None
    if status.st_uid != os.geteuid() or status.st_mode & WRITABLE_BY_OTHER_USERS:
        raise StartError(
            f"{option} is {str(path)!r}, which belongs to user {status.st_uid} and has "
            f"mode {status.st_mode & 0o777:o}; expected a directory of user {os.geteuid()} that no "
            "other user can write to"
        )
    return directory


class FileStore:
    """Store of values in `directory`, as returned by `open_directory`.

    `put` is called by one thread.
    """

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, directory: Path, bounds: StoreBounds) -> None:
        self._directory, self._bounds = directory, bounds

    def __str__(self) -> str:
        return str(self._directory)

    def has(self, name: str) -> bool:
        """Return whether there is a file of the value."""
        return self._path(name).exists()

    def get(self, name: str, max_bytes: int) -> bytearray | None:
        """Return the contents of a file, its first `max_bytes` at most; None without a file."""
        try:
            with open(self._path(name), "rb", 0, opener=_open) as file:
                content = bytearray(min(os.fstat(file.fileno()).st_size, max_bytes))
                count = file.readinto(content)
        except FileNotFoundError:
            return None
        self.touch(name)
        return content[:count]

    def touch(self, name: str, at: int | None = None) -> None:
        """Mark the value as used now, or at `at` nanoseconds since the epoch."""
        with suppress(OSError):  # another process has removed it
            path = self._path(name)
            os.utime(path) if at is None else os.utime(path, ns=(at, at))

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write a value.  Raises OSError, and then leaves no file of it."""
        if self._bounds.is_due:
            self._evict()
        number, path = mkstemp(UNFINISHED, name, self._directory)  # with mode 0600
        try:
            with open(number, "wb", 0) as file:
                flock(number, LOCK_EX | LOCK_NB)  # held until the file closes or the process ends
                for part in parts:
                    if file.write(part) != len(part):
                        raise OSError(errno.ENOSPC, f"the disk of {self._directory} is full")
                os.rename(path, self._path(name))
        except BaseException:
            _remove(Path(path))
            raise
        self._bounds.budget -= sum(map(len, parts))

    def remove(self, name: str) -> None:
        """Remove a value, if it is there."""
        _remove(self._path(name))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _evict(self) -> None:
        """Evict values if the limit is near, and remove unfinished files of killed processes."""
        values = []
        for entry in os.scandir(self._directory):
            if not (_NAMES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                continue
            with suppress(FileNotFoundError):  # another process has just removed it
                if entry.name.endswith(UNFINISHED):
                    remove_if_abandoned(Path(entry.path))
                else:
                    status = entry.stat(follow_symlinks=False)
                    values.append((status.st_mtime_ns, entry.path, status.st_size))
        for path in self._bounds.select(values, time.time_ns()):
            _remove(Path(path))

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{SUFFIX}"


def _open(path: str, flags: int) -> int:
    """Open a file without following links, and without waiting on a path that is a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def remove_if_abandoned(path: Path) -> None:
    """Remove an unfinished file that no process writes any more."""
    with open(path, "rb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return
        log.info("%s is removed: the process that was writing it was killed", path)
        _remove(path)
