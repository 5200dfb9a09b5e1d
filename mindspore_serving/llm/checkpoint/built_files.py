"""Files that are built once and read by later processes, in the user's cache directory.

An entry that is damaged, or that another version has built, is built again.  Several processes may
share the directory: an entry appears whole, under its name, or not at all.  Knows no content.
"""

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import mindspore_serving
from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.process.interpreter import cache_directory

DIRECTORY = "built"
MAX_BYTES = 1 << 29  # of all entries; the tokenizer of 262,144 tokens takes 12 MB
_MAGIC = b"mindspore-serving built file 1\n"
_DIGEST = 32  # bytes, behind _MAGIC
_UNFINISHED, _MAX_SECONDS = ".unfinished", 3600.0  # after which its process has surely ended


def key_of(parts: Iterable[bytes | memoryview]) -> str:
    """Return the key of what is built from `parts` by this version of the package."""
    digest = hashlib.sha256(mindspore_serving.__version__.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


@cache
def source_digest(package: Path) -> bytes:
    """Return the digest of a package's modules, so that a change of them builds files again."""
    digest = hashlib.sha256()
    for path in sorted(package.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def read_or_build(
    key: str, build: Callable[[], bytes], max_bytes: int = MAX_BYTES, directory: Path | None = None
) -> bytes:
    """Return the entry `key` or, if there is none, what `build` returns, which is written.

    The entries that were not read for the longest time are removed until all have at most
    `max_bytes`.  Without a directory that only this user can write, nothing is read or written,
    which is logged once.  An entry that other users can write is built again.  `directory` is
    DIRECTORY of the user's cache unless there is another.
    """
    directory = _open_directory(directory)
    if directory is None:
        return build()
    path = directory / key
    content = _read(path, max_bytes)
    if content is None:
        content = build()
        _write(path, content, max_bytes)
    return content


def _open_directory(directory: Path | None) -> Path | None:
    """Create the directory if need be; return None if it must not or cannot be used."""
    try:
        directory = directory or cache_directory() / DIRECTORY
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except (OSError, StartError) as error:
        _warn(str(error))
        return None
    if not (stat.S_ISDIR(status.st_mode) and _is_private(status)):
        _warn(f"{directory} is no directory that only this user can write")
        return None
    return directory


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(path: Path, max_bytes: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            is_private = _is_private(os.fstat(file.fileno()))
            stored = file.read(max_bytes + 1)
    except OSError:
        return None
    begin = len(_MAGIC) + _DIGEST
    digest, content = stored[len(_MAGIC) : begin], stored[begin:]
    is_whole = is_private and len(stored) <= max_bytes and stored.startswith(_MAGIC)
    if not is_whole or hashlib.sha256(content).digest() != digest:
        log.warning("%s is damaged, and built again", path)
        return None
    with suppress(OSError):
        os.utime(path)
    return content


def _write(path: Path, content: bytes, max_bytes: int) -> None:
    stored = _MAGIC + hashlib.sha256(content).digest() + content
    if len(stored) > max_bytes:
        return
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(stored)
        os.replace(name, path)
        _remove_oldest(path.parent, max_bytes)
    except OSError as error:
        _warn(str(error))
        with suppress(OSError):
            os.unlink(name)


def _remove_oldest(directory: Path, max_bytes: int) -> None:
    entries = []
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # another process has removed it
            status = path.stat()
            is_left = path.suffix == _UNFINISHED and status.st_mtime < time.time() - _MAX_SECONDS
            if is_left:
                path.unlink()
            elif path.suffix != _UNFINISHED:
                entries.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


@cache
def _warn(reason: str) -> None:
    log.warning("built files are not kept, so that each start builds them again: %s", reason)
