"""Hashes of the contents of files, each read once.

A file of a directory remembers them as long as the size and the times of a file do not change.
"""

import json
import os
import re
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from mindspore_serving import log
from mindspore_serving.stores.file_store import UNFINISHED, remove_if_abandoned

REMEMBERED = "checkpoints.json"
DIGEST_SIZE = 16
_UNFINISHED = re.compile(rf"checkpoints\.(\w{{8}}{re.escape(UNFINISHED)}|[0-9]+)")
_CHUNK = 8 << 20


def status_of(path: Path) -> list[int]:
    """Return numbers that change with the contents of a file.  Raises OSError."""
    status = path.stat()
    # ctime cannot be set back by a user, mtime can.
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times]


class FileHashes:
    """Hashes that `directory` remembers from `save` on."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / REMEMBERED
        self._known = _read(self._path)

    def hash_of(self, path: Path) -> str:
        """Return the hash of the contents of `path`, an absolute path.  Raises OSError."""
        status, entry = status_of(path), self._known.get(str(path))
        if isinstance(entry, dict) and entry.get("status") == status and entry.get("hash"):
            return str(entry["hash"])
        file_hash = _hash(path)
        self._known[str(path)] = {"status": status, "hash": file_hash}
        return file_hash

    def save(self) -> None:
        """Write the hashes of the files that still exist.

        A failure is only logged: the next start then hashes the files again.
        """
        kept = {name: entry for name, entry in self._known.items() if os.path.exists(name)}
        unfinished = ""
        try:
            _remove_leftovers(self._path.parent)
            number, unfinished = mkstemp(UNFINISHED, f"{self._path.stem}.", self._path.parent)
            with open(number, "w") as file:
                flock(number, LOCK_EX | LOCK_NB)  # held until it is closed or this process ends
                json.dump(kept, file)
                file.flush()
                os.replace(unfinished, self._path)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)
            with suppress(OSError):
                os.unlink(unfinished)


def _hash(path: Path) -> str:
    digest = blake2b(digest_size=DIGEST_SIZE)
    with open(path, "rb", 0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remove_leftovers(directory: Path) -> None:
    """Remove unfinished files of killed processes; older versions named them by process id."""
    for path in directory.iterdir():
        if _UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError):  # another process has just removed it
                remove_if_abandoned(path)
