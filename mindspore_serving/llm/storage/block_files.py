"""Cache blocks as files of one directory, which several processes may share.

A file's name hashes the model and the tokens that its block was computed from.  It is written under
another name and renamed when it is whole, and has a checksum; what is damaged is removed.  Files
that were used least recently go when all together would be larger than allowed.  Those with names
of another form are left alone.  Knows no thread and no engine.
"""

import os
import re
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp

from mindspore_serving import log
from mindspore_serving.errors import StartError

SUFFIX, UNFINISHED = ".block", ".unfinished"
MAGIC = b"MSKV0001"
OTHERS_MAY_WRITE = 0o022
_DIGEST_SIZE = 16
_NAMES = re.compile(rf"[0-9a-f]{{32}}(\w{{8}}{re.escape(UNFINISHED)}|{re.escape(SUFFIX)})")
HEAD_BYTES = len(MAGIC) + 2 * _DIGEST_SIZE  # then the file's name, and a checksum of the contents
SHARE = 8  # 1/8 of all is freed at once; 1/8 of what is free is written before the next look


def open_directory(path: str | Path) -> Path:
    """The directory `path`, made if it is missing.  Raises StartError: it cannot be, or others than
    this user may write to it, who could put what they like into answers.
    """
    directory = Path(path).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise StartError(f"prefix_cache_dir is {str(path)!r}: {error}") from None
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_MAY_WRITE:
        raise StartError(
            f"prefix_cache_dir is {str(path)!r}, which is of user {status.st_uid} with mode "
            f"{status.st_mode & 0o777:o}; expected a directory of user {os.geteuid()} that nobody "
            "else can write to"
        )
    return directory


class BlockFiles:
    """Used by one thread, but for `has`.

    Args:
        directory: as `open_directory` gives it.
        model: what all blocks depend on beside their tokens.
        block_bytes: of each block.
        most_bytes: of all blocks in `directory` together, those of other models too.

    Raises StartError if not one block would fit.
    """

    def __init__(self, directory: Path, model: bytes, block_bytes: int, most_bytes: int) -> None:
        self.file_bytes = HEAD_BYTES + block_bytes
        if self.file_bytes > most_bytes:
            raise StartError(
                f"prefix_cache_disk is {most_bytes}, expected at least {self.file_bytes}: a block "
                "takes so many bytes"
            )
        self.most_bytes = most_bytes
        self._directory = directory
        self._model = blake2b(model, digest_size=_DIGEST_SIZE).digest()
        self._room = 0  # bytes that may be written before the directory is looked at again

    def has(self, digest: bytes) -> bool:
        """Whether there is a file of the block that `digest` is the hash of."""
        return self._path(self._name(digest)).exists()

    def read(self, digest: bytes) -> memoryview | None:
        """The contents of that block; None if it has no undamaged file."""
        name = self._name(digest)
        path, content = self._path(name), bytearray(self.file_bytes)
        try:
            with open(path, "rb", 0, opener=_open) as file:
                size = os.fstat(file.fileno()).st_size
                is_whole = size == self.file_bytes and file.readinto(content) == size
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("a block of the prefix cache cannot be read: %s", error)
            return None
        block = memoryview(content)[HEAD_BYTES:]
        if not is_whole or content[:HEAD_BYTES] != _head(name, block):
            log.warning("%s is damaged, or no block of the prefix cache, and is removed", path)
            _remove(path)
            return None
        self.touch(digest)
        return block

    def touch(self, digest: bytes, at: int | None = None) -> None:
        """The block was used now, or `at` nanoseconds since the epoch."""
        with suppress(OSError):  # another process has removed it
            path = self._path(self._name(digest))
            os.utime(path) if at is None else os.utime(path, ns=(at, at))

    def write(self, digest: bytes, block: memoryview) -> None:
        """Keep a block.  Raises OSError; then no file of it is left."""
        if self._room < self.file_bytes:
            self._look()
        name = self._name(digest)
        number, path = mkstemp(UNFINISHED, name.hex(), self._directory)  # of this user alone: 0600
        try:
            with open(number, "wb", 0) as file:
                flock(number, LOCK_EX | LOCK_NB)  # until it is closed, or this process has ended
                for part in (_head(name, block), block):
                    if file.write(part) != len(part):
                        raise OSError(f"the disk of {self._directory} is full")
                os.rename(path, self._path(name))
        except BaseException:
            _remove(Path(path))
            raise
        self._room -= self.file_bytes

    def _look(self) -> None:
        """Make room for a block, and remove what a process that was killed was writing."""
        found = []
        for entry in os.scandir(self._directory):
            if not (_NAMES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                continue
            with suppress(FileNotFoundError):  # another process has just removed it
                if entry.name.endswith(UNFINISHED):
                    remove_if_left(Path(entry.path))
                else:
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.path, status.st_size))
        total = sum(size for _, _, size in found)
        step = max(self.file_bytes, self.most_bytes // SHARE**3)
        if total + step > self.most_bytes:
            least = self.most_bytes - max(step, self.most_bytes // SHARE)
            for _, path, size in sorted(found):
                if total <= least:
                    break
                _remove(Path(path))
                total -= size
        self._room = max(step, (self.most_bytes - total) // SHARE)

    def _name(self, digest: bytes) -> bytes:
        return blake2b(self._model + digest, digest_size=_DIGEST_SIZE).digest()

    def _path(self, name: bytes) -> Path:
        return self._directory / f"{name.hex()}{SUFFIX}"


def _open(path: str, flags: int) -> int:
    """Of what is no file the contents are not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _head(name: bytes, block: memoryview) -> bytes:
    return MAGIC + name + blake2b(block, digest_size=_DIGEST_SIZE).digest()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def remove_if_left(path: Path) -> None:
    """Remove a file that no process writes any more."""
    with open(path, "rb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return
        log.info("%s was being written when a process was killed, and is removed", path)
        _remove(path)
