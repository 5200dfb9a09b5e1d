"""Members of a zip archive, within limits; nothing is unpacked to a disk."""

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign.reading import decode

MAX_MEMBERS = 10_000
MAX_RATIO = 200  # bytes of a member for each byte that is stored
_SMALL = 16 << 20  # bytes up to which the ratio does not matter
_CHUNK = 1 << 20
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError)


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
                while chunk := member.read(_CHUNK):
                    target.write(chunk)
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
