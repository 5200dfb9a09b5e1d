"""Downloads that resume, are checked by hash, and are safe in several processes at once.

It knows no source: `open_at` of a `FileDownload` has the bytes from an offset on.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.hub.selection import is_weights
from mindspore_serving.hub.source import (
    RemoteFile,
    Unreachable,
    cache_directory,
    check_room,
    sha256_of,
)

BACKOFF = 0.5  # seconds before the second attempt; each further wait is twice as long
ATTEMPTS = 5  # in a row that bring no byte
_WORKERS = 8  # files downloaded at the same time
_LARGE = 1 << 30  # bytes of a file whose hash takes seconds
_RESERVE = 1 << 30  # bytes of the disk that a file of unknown size must leave free


@dataclass(frozen=True, slots=True)
class RemoteContent:
    """Bytes of a file from `offset` on."""

    chunks: Generator[bytes, None, None]
    offset: int = 0
    total: int = -1  # bytes of the whole file, -1 if the server does not tell
    validator: str = ""  # ETag or date of this version; a partial file of another is discarded


class OpenAt(Protocol):
    """Function that asks for a file from an offset on, if it still has the version `validator`."""

    def __call__(self, offset: int, validator: str) -> RemoteContent:
        """Return the bytes, from 0 on if the server has no ranges or another version.

        Raises Interrupted if another attempt may succeed, any other ServingError if not.
        """


class Interrupted(Unreachable):
    """Connection that failed, or a busy server: worth another attempt after `wait` seconds."""

    def __init__(self, text: str, wait: float = 0) -> None:
        super().__init__(text)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class FileDownload:
    """File to download: its name in errors, its path, and what its bytes must be."""

    name: str
    target: Path
    open_at: OpenAt
    size: int = -1  # -1 if the source does not tell
    sha256: str = ""  # hex; "" if the source does not tell


def fetch_all(downloads: Sequence[FileDownload], report: Callable[[int], None]) -> None:
    """Download files that are missing, several at once; present ones are reported at once.

    The first error ends the others at their next chunk; their partial files stay, to be resumed.
    """
    if not downloads:
        return
    for directory in {download.target.parent for download in downloads}:
        directory.mkdir(parents=True, exist_ok=True)
    check_room(downloads[0].target.parent, sum(map(_remaining, downloads)))
    stop = threading.Event()
    with ThreadPoolExecutor(_WORKERS) as pool:
        jobs = [pool.submit(_Fetch(download, report, stop).run) for download in downloads]
        try:
            for job in _as_they_fail(jobs):
                job.result()
        finally:  # also after Ctrl-C
            stop.set()
            pool.shutdown(cancel_futures=True)


def fetch_in_order(
    downloads: Sequence[FileDownload], files: Sequence[RemoteFile], report: Callable[[int], None]
) -> None:
    """Download settings first, then weights: a directory with all weights is complete."""
    if downloads:
        check_room(downloads[0].target.parent, sum(map(_remaining, downloads)))
    for is_second in (False, True):
        pairs = zip(downloads, files, strict=True)
        fetch_all([download for download, file in pairs if is_weights(file) == is_second], report)


@contextmanager
def locked(target: Path, name: str) -> Iterator[None]:
    """Hold the lock of a path, for which other processes that download `name` wait."""
    from filelock import FileLock, Timeout

    path = record_of(target).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.tell(f"another process downloads {name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def record_of(path: Path) -> Path:
    """Return the path, in our cache, of what is known of a file, and of its lock beside it."""
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    return cache_directory("locks") / f"{name}.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that readers see the old or the new contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text)
    temporary.replace(path)


def _as_they_fail(jobs: Sequence[Future[None]]) -> Iterator[Future[None]]:
    done, rest = wait(jobs, return_when="FIRST_EXCEPTION")
    yield from done
    yield from rest


def _remaining(download: FileDownload) -> int:
    """Return the bytes that are missing, by the sizes of what is there."""
    sizes = [
        path.stat().st_size
        for path in (download.target, _partial(download.target))
        if path.exists()
    ]
    return max(0, download.size - max(sizes, default=0))


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def _is_present(download: FileDownload) -> bool:
    """Return whether a complete file is there; its hash is computed once, and noted."""
    target = download.target
    if not target.is_file() or download.size not in (-1, target.stat().st_size):
        return False
    if not download.sha256:
        return True
    if _noted(target) == download.sha256:
        return True
    if target.stat().st_size > _LARGE:
        log.tell(f"{download.name} is there; computing its SHA-256, once")
    return sha256_of(target) == download.sha256 and _note(target, download.sha256)


def _noted(target: Path) -> str:
    """Return the SHA-256 that a file had, if it has not changed since."""
    try:
        note = json.loads(record_of(target).read_text())
        stat = target.stat()
    except (OSError, ValueError):
        return ""
    same = note.get("stat") == [stat.st_size, stat.st_mtime_ns]
    return str(note.get("sha256", "")) if same else ""


def _note(target: Path, sha256: str) -> bool:
    stat = target.stat()
    note = {"sha256": sha256, "stat": [stat.st_size, stat.st_mtime_ns]}
    write_atomically(record_of(target), json.dumps(note))
    return True


class _Fetch:
    """Download of one file."""

    def __init__(
        self, download: FileDownload, report: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._download = download
        self._partial = _partial(download.target)
        self._validator = record_of(self._partial).with_suffix(".version")
        self._report = report
        self._stop = stop
        self._reported = 0

    def run(self) -> None:
        """Download the file, unless another process did so while this one waited for it."""
        if self._stop.is_set():
            return
        if _is_present(self._download):
            self._tell(self._download.target.stat().st_size)
            return
        with locked(self._download.target, self._download.name):
            if _is_present(self._download):
                self._tell(self._download.target.stat().st_size)
                return
            with self._partial.open("ab") as file:
                self._attempt(file)
            self._check_hash()
            self._partial.replace(self._download.target)
            self._validator.unlink(missing_ok=True)
        if self._download.sha256:
            _note(self._download.target, self._download.sha256)

    def _attempt(self, file: BinaryIO) -> None:
        failures = 0
        while True:
            size = file.tell()
            try:
                self._read(file)
                return
            except Interrupted as error:
                failures = 1 if file.tell() > size else failures + 1
                if failures >= ATTEMPTS:
                    raise
                self._stop.wait(max(error.wait, BACKOFF * 2 ** (failures - 1)))
                self._check_stopped()

    def _read(self, file: BinaryIO) -> None:
        """Ask for the rest of the file, and append it."""
        version = self._validator.read_text() if self._validator.exists() else ""
        if not version and not self._download.sha256:
            file.truncate(0)  # nothing would tell that the rest is of another version
        size = file.seek(0, os.SEEK_END)
        expected = self._download.size
        if 0 < expected == size and self._download.sha256:
            self._tell(size)
            return
        content = self._download.open_at(size if expected < 0 or size < expected else 0, version)
        with closing(content.chunks):
            if content.offset != size:
                file.truncate(content.offset)
                file.seek(content.offset)
            write_atomically(self._validator, content.validator)
            self._tell(content.offset)
            self._append(file, content)

    def _append(self, file: BinaryIO, content: RemoteContent) -> None:
        limit = self._limit(content.total)
        for chunk in content.chunks:
            self._check_stopped()
            if file.tell() + len(chunk) > limit:
                self._discard()
                raise StartError(
                    f"{self._download.name} has more than the {limit} bytes that "
                    "its source tells: it is removed"
                )
            file.write(chunk)
            self._tell(file.tell())
        file.flush()
        total = content.total if content.total >= 0 else self._download.size
        if 0 <= file.tell() < total:
            raise Interrupted(
                f"the connection ended after {file.tell()} of {total} bytes of "
                f"{self._download.name}; start again, and the rest is downloaded"
            )

    def _limit(self, total: int) -> int:
        """Return the bytes that the file may have, checked before one of them is written."""
        expected = self._download.size
        if expected >= 0 and total not in (-1, expected):
            self._discard()
            raise StartError(
                f"{self._download.name} has {total} bytes, and its source lists {expected}; "
                "try again, and look for a proxy that changes files"
            )
        directory = self._download.target.parent
        if total >= 0:
            if expected < 0:
                check_room(directory, total)
            return total
        return expected if expected >= 0 else shutil.disk_usage(directory).free - _RESERVE

    def _check_hash(self) -> None:
        expected = self._download.sha256
        digest = sha256_of(self._partial) if expected else ""
        if digest != expected:
            self._discard()
            raise StartError(
                f"{self._download.name} was downloaded with the SHA-256 {digest}, expected "
                f"{expected}: it is removed; try again, and look for a proxy that changes files"
            )

    def _discard(self) -> None:
        self._partial.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)

    def _tell(self, size: int) -> None:
        """Report the bytes that are there now; less than before after another start at 0."""
        self._report(size - self._reported)
        self._reported = size

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise StartError(f"the download of {self._download.name} was stopped")
