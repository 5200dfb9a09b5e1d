"""Archives of models, within limits: a member in memory, or all members in a directory.

Archives are hostile input.  Names that lead out of the directory, links and devices are refused,
and sizes are checked before anything is written.
"""

import gzip
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import IO

from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign.reading import decode

MAX_MEMBERS = 10_000
MAX_RATIO = 200  # bytes of a member for each byte that is stored
_SMALL = 16 << 20  # bytes up to which the ratio does not matter
_CHUNK = 1 << 20
_MAX_READ = 16 << 20  # bytes of a tar archive at once, so of a header
_SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")
_DAMAGED = (
    tarfile.TarError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    EOFError,
    ValueError,
)


class Archive:
    """A zip archive, a context manager; its names are as they are written in it.

    Raises StartError for a file that is no archive, or has too many members.
    """

    def __init__(self, path: str) -> None:
        self._name = os.path.basename(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGED as error:
            raise StartError(f"{self._name} is no zip archive that can be read: {error}") from None
        if len(self._zip.infolist()) > MAX_MEMBERS:
            self._zip.close()
            raise StartError(f"{self._name} has more than {MAX_MEMBERS} members")

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def members(self) -> list[tuple[str, int]]:
        """Return the names and sizes of all files.  Raises StartError for anything else in it."""
        infos = [info for info in self._zip.infolist() if not info.is_dir()]
        for info in infos:
            self.check(info.filename)
        return [(info.filename, info.file_size) for info in infos]

    def text(self, name: str, max_size: int) -> str:
        """Return the text of a member of at most `max_size` bytes.  Raises StartError."""
        self.check(name)
        try:
            with self._zip.open(name) as file:
                return decode(name, file.read(max_size + 1), max_size)
        except _DAMAGED as error:
            raise StartError(f"{self._name}: {name} cannot be read: {error}") from None

    def check(self, name: str) -> None:
        """Raise StartError if there is no file `name`, or if it would be far larger unpacked."""
        try:
            info = self._zip.getinfo(name)
        except KeyError:
            raise StartError(f"{self._name} has no member {name!r:.200}") from None
        if info.is_dir() or (info.external_attr >> 28) == 0xA:  # a symbolic link
            raise StartError(f"{self._name}: member {name!r:.200} is not a file")
        if info.file_size > max(_SMALL, MAX_RATIO * info.compress_size):
            raise StartError(
                f"{self._name}: member {name!r:.200} has {info.file_size} bytes of "
                f"{info.compress_size}, expected at most {MAX_RATIO} times as many"
            )

    def unpack(self, name: str, file: int) -> None:
        """Write a member to the open file descriptor `file`.  Raises StartError."""
        self.check(name)
        try:
            with self._zip.open(name) as member, os.fdopen(file, "wb", closefd=False) as target:
                shutil.copyfileobj(member, target, _CHUNK)
        except _DAMAGED as error:
            raise StartError(f"{self._name}: {name} cannot be read: {error}") from None


@contextmanager
def unpacked(path: str, member: str) -> Iterator[str]:
    """Hold the path of a file in memory with a member of the archive at `path`, and its suffix.

    Raises StartError; an error of the block names the member instead of that path.
    """
    file = os.memfd_create("model")
    try:
        with Archive(path) as archive:
            archive.unpack(member, file)
        with TemporaryDirectory(prefix="mindspore-serving-") as directory:
            location = os.path.join(directory, os.path.basename(member))
            os.symlink(f"/proc/self/fd/{file}", location)
            try:
                yield location
            except StartError as error:
                shown = f"{path}/{member}"
                raise StartError(str(error).replace(location, shown)) from error
    finally:
        os.close(file)


def stem(path: str) -> str:
    """Return the name of an archive without its suffix; "" for another file."""
    name = os.path.basename(path)
    return next((name[: -len(end)] for end in _SUFFIXES if name.lower().endswith(end)), "")


def unpack(path: str, directory: str) -> None:
    """Write the files of a zip or tar archive to `directory`, which is empty.

    Raises StartError for an archive that is damaged, has names that lead out of the directory,
    links, too many members, or more bytes than fit on the disk or than its size promises.
    """
    name = os.path.basename(path)
    try:
        if name.lower().endswith(".zip"):
            with Archive(path) as archive:
                members = archive.members()
                _check_members(path, members, directory)
                for member, _ in members:
                    with _created(name, directory, member) as file:
                        archive.unpack(member, file.fileno())
        else:
            _unpack_tar(path, directory)
    except _DAMAGED as error:
        raise StartError(f"{name} cannot be unpacked: {error}") from None


def _unpack_tar(path: str, directory: str) -> None:
    name = os.path.basename(path)
    with TemporaryDirectory(prefix="mindspore-serving-") as scratch:
        if not name.lower().endswith(".tar"):
            path = _decompressed(path, os.path.join(scratch, "plain.tar"))
        with (
            open(path, "rb") as plain,
            tarfile.TarFile(fileobj=_LimitedReads(plain)) as archive,  # type: ignore[arg-type]
        ):
            files = []
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise StartError(f"{name} has more than {MAX_MEMBERS} members")
                if member.issparse() or not (member.isfile() or member.isdir()):
                    raise StartError(f"{name}: member {member.name!r:.200} is not a file")
                files += [] if member.isdir() else [member]
            _check_members(path, [(file.name, file.size) for file in files], directory)
            for member in files:
                source = archive.extractfile(member)
                with _created(name, directory, member.name) as target:
                    assert source is not None  # it is a file
                    shutil.copyfileobj(source, target, _CHUNK)


class _LimitedReads:
    """File of which no read is so large as the header of a hostile archive claims to be."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek
        self.name, self.mode = "", "rb"

    def read(self, size: int) -> bytes:
        """Read `size` bytes.  Raises ValueError for too many."""
        if not 0 <= size <= _MAX_READ:
            raise ValueError(f"a part of it has {size} bytes, expected at most {_MAX_READ}")
        return self._file.read(size)


def _decompressed(path: str, target: str) -> str:
    """Write the content of a gzip file to `target`, within the limits, and return that."""
    limit = min(_limit(path), shutil.disk_usage(os.path.dirname(target)).free)
    with gzip.open(path) as source, open(target, "wb") as file:
        while chunk := source.read(_CHUNK):
            if file.tell() + len(chunk) > limit:
                name = os.path.basename(path)
                raise StartError(f"{name} has more than {limit} bytes when it is unpacked")
            file.write(chunk)
    return target


def _check_members(path: str, members: list[tuple[str, int]], directory: str) -> None:
    name = os.path.basename(path)
    for member, _ in members:
        parts = member.split("/")
        parts = parts[1:] if parts[0] == "." else parts
        if {"", ".", ".."} & set(parts) or "\\" in member or not member.isprintable():
            raise StartError(f"{name}: member {member!r:.200} is no path inside the archive")
    size, free = sum(size for _, size in members), shutil.disk_usage(directory).free
    if size > free:
        raise StartError(f"{name} has {size} bytes when it is unpacked, {free} are free")
    if size > (limit := _limit(path)):  # members may share their compressed bytes
        raise StartError(f"{name} has {size} bytes when it is unpacked, expected at most {limit}")


def _limit(path: str) -> int:
    """Return the limit of the bytes in an archive."""
    return max(_SMALL, MAX_RATIO * os.path.getsize(path))


def _created(name: str, directory: str, member: str) -> IO[bytes]:
    """Open a new file for a member whose name was checked."""
    path = os.path.join(directory, member)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return open(path, "xb")
    except OSError as error:
        raise StartError(f"{name}: member {member!r:.200} cannot be written: {error}") from None
