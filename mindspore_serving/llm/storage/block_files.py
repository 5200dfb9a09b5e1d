"""Cache blocks as files of one directory, which several processes may share.

A file's name is a hash of the model and of the tokens that its block was computed from. A block is
written under a temporary name and renamed when it is complete, and has a checksum; damaged files
are removed. The least recently used files are evicted when the total would exceed the limit. Files
with names of another form are left alone. Knows no thread and no engine.

    <hash>XXXXXXXX.unfinished  --rename-->  <hash>.block  --evicted or damaged-->  removed
        locked by its writer; removed once nobody holds the lock
"""

import os
import re
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp

from mindspore_serving import log
from mindspore_serving.errors import StartError, reason

SUFFIX, UNFINISHED = ".block", ".unfinished"
MAGIC = b"MSKV0001"
WRITABLE_BY_OTHER_USERS = 0o022
_DIGEST_SIZE = 16
_NAMES = re.compile(rf"[0-9a-f]{{32}}(\w{{8}}{re.escape(UNFINISHED)}|{re.escape(SUFFIX)})")
HEAD_BYTES = len(MAGIC) + 2 * _DIGEST_SIZE  # then the file's name, and a checksum of the contents
SHARE = 8  # an eviction frees 1/8 of the limit; 1/8 of the free space is written between two scans


def open_directory(path: str | Path) -> Path:
    """Return the directory `path`, created with mode 0700 if it is missing.

    Raises StartError if it cannot be created, or if other users may write to it: they could put
    answers of their choice into the cache.
    """
    directory = Path(path).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise StartError(
            f"prefix_cache_dir is {str(path)!r}, which cannot be created: {reason(error)}"
        ) from None
    if status.st_uid != os.geteuid() or status.st_mode & WRITABLE_BY_OTHER_USERS:
        raise StartError(
            f"prefix_cache_dir is {str(path)!r}, which belongs to user {status.st_uid} and has "
            f"mode {status.st_mode & 0o777:o}; expected a directory of user {os.geteuid()} that no "
            "other user can write to"
        )
    return directory


class BlockFiles:
    """Files of the cache blocks of one model.  Used by one thread, except `has`.

    Args:
        directory: as returned by `open_directory`.
        model: everything that the blocks depend on besides their tokens.
        block_bytes: size of a block.
        max_bytes: limit of all blocks in `directory` together, those of other models included.

    Raises:
        StartError: the limit is smaller than one block.
    """

    def __init__(self, directory: Path, model: bytes, block_bytes: int, max_bytes: int) -> None:
        self.file_bytes = HEAD_BYTES + block_bytes
        if self.file_bytes > max_bytes:
            raise StartError(
                f"prefix_cache_disk is {max_bytes} bytes, expected at least {self.file_bytes}, "
                "the size of one block"
            )
        self.max_bytes = max_bytes
        self._directory = directory
        self._model = blake2b(model, digest_size=_DIGEST_SIZE).digest()
        self._budget = 0  # bytes that may be written before the next scan of the directory

    def has(self, digest: bytes) -> bool:
        """Return whether there is a file for the block with the hash `digest`."""
        return self._path(self._name(digest)).exists()

    def read(self, digest: bytes) -> memoryview | None:
        """Return the contents of the block, None if it has no undamaged file."""
        name = self._name(digest)
        path, content = self._path(name), bytearray(self.file_bytes)
        try:
            with open(path, "rb", 0, opener=_open) as file:
                size = os.fstat(file.fileno()).st_size
                is_complete = size == self.file_bytes and file.readinto(content) == size
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("a block of the prefix cache cannot be read: %s", error)
            return None
        block = memoryview(content)[HEAD_BYTES:]
        if not is_complete or content[:HEAD_BYTES] != _head(name, block):
            log.warning("%s is damaged or no block of the prefix cache; it is removed", path)
            _remove(path)
            return None
        self.touch(digest)
        return block

    def touch(self, digest: bytes, at: int | None = None) -> None:
        """Mark the block as used now, or at `at` nanoseconds since the epoch."""
        with suppress(OSError):  # another process has removed it
            path = self._path(self._name(digest))
            os.utime(path) if at is None else os.utime(path, ns=(at, at))

    def write(self, digest: bytes, block: memoryview) -> None:
        """Write a block.  Raises OSError, and then leaves no file of it."""
        if self._budget < self.file_bytes:
            self._scan()
        name = self._name(digest)
        number, path = mkstemp(UNFINISHED, name.hex(), self._directory)  # with mode 0600
        try:
            with open(number, "wb", 0) as file:
                flock(number, LOCK_EX | LOCK_NB)  # held until the file closes or the process ends
                for part in (_head(name, block), block):
                    if file.write(part) != len(part):
                        raise OSError(f"the disk of {self._directory} is full")
                os.rename(path, self._path(name))
        except BaseException:
            _remove(Path(path))
            raise
        self._budget -= self.file_bytes

    def _scan(self) -> None:
        """Evict blocks if the limit is near, and remove unfinished files of killed processes.

        A scan lists the whole directory, so it is rare: it sets `_budget`, the bytes that `write`
        may add before the next one. That is only a share of the free space, as other processes
        write there too.
        """
        blocks = []
        for entry in os.scandir(self._directory):
            if not (_NAMES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                continue
            with suppress(FileNotFoundError):  # another process has just removed it
                if entry.name.endswith(UNFINISHED):
                    remove_if_abandoned(Path(entry.path))
                else:
                    status = entry.stat(follow_symlinks=False)
                    blocks.append((status.st_mtime_ns, entry.path, status.st_size))
        total = sum(size for _, _, size in blocks)
        step = max(self.file_bytes, self.max_bytes // SHARE**3)
        if total + step > self.max_bytes:
            target = self.max_bytes - max(step, self.max_bytes // SHARE)
            for _, path, size in sorted(blocks):
                if total <= target:
                    break
                _remove(Path(path))
                total -= size
        self._budget = max(step, (self.max_bytes - total) // SHARE)

    def _name(self, digest: bytes) -> bytes:
        return blake2b(self._model + digest, digest_size=_DIGEST_SIZE).digest()

    def _path(self, name: bytes) -> Path:
        return self._directory / f"{name.hex()}{SUFFIX}"


def _open(path: str, flags: int) -> int:
    """Open a file without following links, and without waiting on a path that is a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _head(name: bytes, block: memoryview) -> bytes:
    return MAGIC + name + blake2b(block, digest_size=_DIGEST_SIZE).digest()


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
