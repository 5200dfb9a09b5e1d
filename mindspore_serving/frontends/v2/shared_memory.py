"""Regions of POSIX shared memory that clients register by name.

A region is read and written as a file, never mapped: otherwise a client that truncates it would
kill the server by SIGBUS.  Off by default.
"""

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from mindspore_serving.core.buffers import LARGE, StoredBytes
from mindspore_serving.errors import Forbidden, InvalidInputs, NotFound, Overloaded
from mindspore_serving.frontends.v2.answers import RegisteredRegion
from mindspore_serving.wire.v2.request import Region

DIRECTORY = "/dev/shm"
MAX_REGIONS = 256
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.-]{0,200})", re.ASCII)
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _File:
    """An open file, closed with its last reference, as queued requests read it later."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)

    def read(self, start: int, target: memoryview) -> None:
        """Fill `target` from offset `start`, with zeros after the end of a truncated file."""
        count = 0
        with suppress(OSError):
            while count < len(target):
                num_read = os.preadv(self.number, [target[count:]], start + count)
                if not num_read:
                    break
                count += num_read
        if count < len(target):
            target[count:] = bytes(len(target) - count)


@dataclass(frozen=True, slots=True)
class _Registered:
    key: str
    offset: int
    size: int
    file: _File


class SharedMemory:
    """Registered regions of one server."""

    def __init__(self, *, is_enabled: bool = False, directory: str = DIRECTORY) -> None:
        self.is_enabled = is_enabled
        self._directory = directory
        self._regions: dict[str, _Registered] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Register `size` bytes at `offset` of the object `key`.

        Raises InvalidInputs, Forbidden if shared memory is off, and Overloaded for too many
        regions.
        """
        self._check_enabled()
        match = _KEY.fullmatch(key)
        if not _NAME.fullmatch(name) or match is None:
            raise InvalidInputs(
                f"shared memory '{name[:64]}' with key '{key[:64]}': expected a name, and a key of "
                "letters, digits and _ . - that is one file of /dev/shm"
            )
        if name in self._regions:
            raise InvalidInputs(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            raise Overloaded(f"{MAX_REGIONS} regions of shared memory are registered already")
        if offset < 0 or size <= 0 or offset + size >= 1 << 63:
            raise InvalidInputs(f"offset {offset} and byte_size {size} are not a part of a file")
        file = self._open(match[1])
        if os.fstat(file.number).st_size < offset + size:
            raise InvalidInputs(
                f"the object of key '{key}' has fewer than {offset + size} bytes, which is the end "
                f"of region '{name}'"
            )
        self._regions[name] = _Registered(key, offset, size, file)

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or all; an unknown region is no error, as in Triton."""
        self._check_enabled()
        for region in [name] if name else list(self._regions):
            self._regions.pop(region, None)

    def status(self, name: str = "") -> list[RegisteredRegion]:
        """Return one region, or all.  Raises NotFound."""
        self._check_enabled()
        if name and name not in self._regions:
            raise NotFound(f"Unable to find system shared memory region: '{name[:256]}'")
        return [
            RegisteredRegion(key, region.key, region.offset, region.size)
            for key, region in self._regions.items()
            if name in ("", key)
        ]

    def read(self, region: Region) -> bytes | StoredBytes:
        """Return a copy of a region, or an object that reads a large one later.

        Raises InvalidInputs.
        """
        registered, start = self._find(region)
        if os.fstat(registered.file.number).st_size < start + region.size:
            raise InvalidInputs(f"shared memory region '{region.name}' has been made smaller")
        data = StoredBytes(registered.file.read, start, region.size)
        return data if region.size >= LARGE else bytes(data)

    def expect(self, region: Region) -> None:
        """Check a region before it is written to.  Raises the errors of `write`."""
        self._find(region)

    def write(self, region: Region, pieces: list[memoryview]) -> None:
        """Write to a region.  Raises InvalidInputs."""
        registered, start = self._find(region)
        try:
            for piece in pieces:
                rest = piece.cast("B")
                while rest:
                    count = os.pwrite(registered.file.number, rest, start)
                    start, rest = start + count, rest[count:]
        except OSError as error:  # truncated since, and its memory is full
            raise InvalidInputs(
                f"shared memory region '{region.name}' cannot be written to: {error.strerror}"
            ) from None

    def close(self) -> None:
        self._regions.clear()

    def _check_enabled(self) -> None:
        if not self.is_enabled:
            raise Forbidden(
                "shared memory of clients is off: --client-shared-memory, or client_shared_memory "
                "of start_grpc_server and start_restful_server, turns it on"
            )

    def _find(self, region: Region) -> tuple[_Registered, int]:
        """Return the registration of a region, and the offset of its part in the file."""
        self._check_enabled()
        registered = self._regions.get(region.name)
        if registered is None:
            raise InvalidInputs(
                f"Unable to find shared memory region: '{region.name[:256]}' is not registered"
            )
        if region.offset + region.size > registered.size:
            raise InvalidInputs(
                f"bytes {region.offset} to {region.offset + region.size} are not in shared memory "
                f"region '{region.name}', which has {registered.size}"
            )
        return registered, registered.offset + region.offset

    def _open(self, name: str) -> _File:
        try:
            file = _File(os.open(os.path.join(self._directory, name), _FLAGS))
        except OSError as error:
            raise InvalidInputs(
                f"Unable to open shared memory region of key '{name}': {error.strerror}"
            ) from None
        if not stat.S_ISREG(os.fstat(file.number).st_mode):
            raise InvalidInputs(f"key '{name}' is not shared memory")
        return file


class RemoteRegionError(Exception):
    """A request has a region that only another process can read: that process must answer."""


class RemoteSharedMemory(SharedMemory):
    """Shared memory whose regions are registered in another process."""

    def read(self, region: Region) -> NoReturn:
        """Raise RemoteRegionError."""
        raise RemoteRegionError

    expect = read
