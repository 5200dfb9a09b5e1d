"""Store of values as objects of a bucket, or as files of any other file system of fsspec.

Amazon's, Google's and Azure's buckets are read by obstore, with the variables and the files that
models by name are downloaded with.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

import fsspec
from fsspec.core import url_to_fs

from mindspore_serving.errors import StartError
from mindspore_serving.hub.source import open_source
from mindspore_serving.stores.base import StoreOptions
from mindspore_serving.stores.file_store import SUFFIX

BUCKETS = ("s3", "gs", "az")
_TIMES = ("mtime", "last_modified", "LastModified", "updated", "modified", "created")


class ObjectStore:
    """Values below a URL.  The time of use of a value is that of its writing."""

    errors: tuple[type[Exception], ...] = (Exception,)  # each file system has its classes

    def __init__(self, options: StoreOptions) -> None:
        """Open the file system.  Raises StartError if the URL is wrong."""
        self._bounds = options.bounds
        self._files, self._root = _open(options)
        self._root = self._root.rstrip("/")

    def __str__(self) -> str:
        return f"the store {self._files.unstrip_protocol(self._root)}"

    def get(self, name: str, max_bytes: int) -> bytes | None:
        """Return a value, its first `max_bytes` at most; None without it."""
        with suppress(FileNotFoundError):
            value: bytes = self._files.cat_file(self._path(name), start=0, end=max_bytes)
            return value
        return None

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        return self.get(name, 1) is not None  # one request, where `exists` also lists a bucket

    def touch(self, name: str, at: int | None = None) -> None:
        """Do nothing: an object has the time of its writing."""

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write a value, and remove old ones if the limit is near."""
        if self._bounds.is_due:
            self._evict()
        value = b"".join(parts)
        self._files.pipe_file(self._path(name), value)
        self._bounds.budget -= len(value)

    def remove(self, name: str) -> None:
        """Remove a value."""
        self._files.rm_file(self._path(name))

    def close(self) -> None:
        """Do nothing: fsspec shares its connections."""

    def _evict(self) -> None:
        self._files.invalidate_cache()
        self._files.makedirs(self._root, exist_ok=True)
        rows = self._files.find(self._root, maxdepth=1, detail=True)
        values = [
            (_time_of(row), path, int(row["size"] or 0))
            for path, row in rows.items()
            if path.endswith(SUFFIX)
        ]
        for path in self._bounds.select(values, time.time_ns()):
            with suppress(FileNotFoundError):  # another process has just removed it
                self._files.rm_file(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}{SUFFIX}"


def _open(options: StoreOptions) -> tuple[Any, str]:
    """Return the file system of a URL, and the path on it.  Raises StartError."""
    scheme, _, path = options.url.partition("://")
    if scheme in BUCKETS:
        from obstore.fsspec import FsspecStore

        arguments = cast(Any, open_source(scheme)).arguments(path.partition("/")[0])
        wait = f"{max(1, int(options.timeout * 1000))}ms"
        arguments["client_options"] |= {"timeout": wait, "connect_timeout": wait}
        arguments["retry_config"] = {"max_retries": 0}
        return FsspecStore(cast(Any, scheme), skip_instance_cache=True, **arguments), path
    if scheme not in fsspec.available_protocols():
        known = ", ".join(sorted(set(fsspec.available_protocols()) - {"file", "local"}))
        raise StartError(
            f"{options.option} has the scheme {scheme!r}, expected redis, rediss, file, s3, gs, "
            f"az, or another of fsspec: {known}"
        )
    try:
        files, root = url_to_fs(options.url)
    except (ImportError, ValueError) as error:
        raise StartError(f"{options.option}, a file system of fsspec: {error}") from None
    return files, root


def _time_of(row: dict[str, Any]) -> int:
    """Return when a file was written, in nanoseconds since the epoch; now if that is not known."""
    value = next((row[name] for name in _TIMES if row.get(name) is not None), time.time())
    seconds = value.timestamp() if isinstance(value, datetime) else float(value)
    return int(seconds * 1e9)
