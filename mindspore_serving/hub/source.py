"""Sources of models: the files of a name, their download, and the cache."""

import hashlib
import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.sources import SOURCES

_MAX_PATH = 1024  # characters
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """File of a model: its contained relative path, and what the source tells of its contents."""

    path: str
    size: int  # bytes; -1 if the source does not tell
    sha256: str = ""  # hex; "" if the source does not tell

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        is_contained = not {"", ".", ".."} & set(parts) and "\\" not in self.path
        if not is_contained or not self.path.isprintable() or len(self.path) > _MAX_PATH:
            shown = self.path[:_MAX_SHOWN]
            raise InvalidInputs(f"the source lists a file {shown!r}, which is no relative path")


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a model at one revision."""

    revision: str  # what the revision was pinned to: a commit, a digest or an ETag
    files: tuple[RemoteFile, ...]
    licence: str = ""
    is_whole: bool = False  # every file is needed: there is nothing to select


@dataclass(frozen=True, slots=True)
class CachedModel:
    """Complete or partial download of one revision of a model."""

    reference: Reference
    revision: str
    path: Path
    size: int  # bytes on disk
    used: float  # when it was last used, in seconds since 1970


class Source(Protocol):
    """Place that has models by name."""

    def list_files(self, reference: Reference) -> Listing:
        """Return the files of a model, by the network.

        Raises ServingError with one sentence: what is missing or refused, and what is near.
        `Unreachable` is raised if the network is the cause.
        """

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the path of a complete download, without the network."""

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download `files`, and return the directory, or the file if the model is a single file.

        It checks disk room first (`check_room`), resumes, checks hashes, and calls `report` with
        each increment of bytes, from any thread: present files count at once.  Weights come after
        settings, so that a directory with all weights is complete.
        """

    def list_cached(self) -> list[CachedModel]:
        """Return what the cache has."""

    def remove_cached(self, reference: Reference) -> int:
        """Remove a model from the cache, all revisions if none is named; return the bytes freed."""


class NotInstalled(StartError):
    """Source whose library is missing."""


class Unreachable(StartError):
    """Source that does not answer: no network, a timeout, or a failure of the server."""


def open_source(scheme: str) -> Source:
    """Return the source of `scheme`, a key of SOURCES."""
    row = SOURCES[scheme]
    try:
        return cast(Source, getattr(importlib.import_module(row.module), row.class_name)())
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mindspore_serving":
            raise
        from mindspore_serving import extras  # which reads the metadata of packages

        raise NotInstalled(
            f"{scheme}:// needs {error.name or row.package}, which is not installed; "
            f"install it with: {extras.command('hub')}"
        ) from None


def check_room(directory: Path, size: int) -> None:
    """Raise StartError if the disk of `directory`, which need not exist, has no room for `size`."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise StartError(
            f"{directory} has {free / 1e9:.2f} GB free, and the download needs {size / 1e9:.2f} GB"
        )


def sha256_of(path: Path) -> str:
    """Return the hex digest of a file's contents."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def cache_directory(scheme: str) -> Path:
    """Return where downloads of a source without a cache of its own go."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("MINDSPORE_SERVING_CACHE") or os.path.join(user, "mindspore-serving")
    return Path(root) / "models" / scheme
