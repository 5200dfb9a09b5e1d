"""A source of models in a directory of this machine, for tests of commands: `shelf://ORG/NAME`.

Its models are directories ORG/NAME/REVISION below `ROOT`, and it downloads them by copying.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mindspore_serving.errors import NotFound
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile, cache_directory
from mindspore_serving.hub.sources import SOURCES, SourceRow

ROOT = "TESTS_SHELF"  # variable: the directory with its models
ROW = SourceRow(__name__, "Shelf", "none", "shelf://ORG/NAME: a directory of this machine")


class Shelf:
    """A `hub.source.Source`."""

    def _directory(self, reference: Reference) -> Path:
        directory = Path(os.environ[ROOT], reference.name, reference.revision or "main")
        if not directory.is_dir():
            raise NotFound(f"the shelf has no model {reference.name}")
        return directory

    def list_files(self, reference: Reference) -> Listing:
        directory = self._directory(reference)
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        rows = zip(files, digests, strict=True)
        return Listing(
            hashlib.sha256("".join(digests).encode()).hexdigest(),
            tuple(
                RemoteFile(path.relative_to(directory).as_posix(), path.stat().st_size, digest)
                for path, digest in rows
            ),
            "mit",
        )

    def find_cached(self, reference: Reference) -> Path | None:
        revisions = cache_directory("shelf") / reference.name
        paths = sorted(revisions.glob("*")) if revisions.is_dir() else []
        return next((path for path in paths if find_complete(path, reference.file)), None)

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        source = self._directory(reference)
        target = cache_directory("shelf") / reference.name / listing.revision
        for file in files:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
            report(file.size // 2)
            shutil.copyfile(source / file.path, target / file.path)
            report(file.size - file.size // 2)
        return target

    def list_cached(self) -> list[CachedModel]:
        root = cache_directory("shelf")
        return [
            CachedModel(
                Reference("shelf", path.parent.relative_to(root).as_posix()),
                path.name,
                path,
                sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
                path.stat().st_mtime,
            )
            for path in sorted(root.glob("*/*/*"))
        ]

    def remove_cached(self, reference: Reference) -> int:
        models = [m for m in self.list_cached() if m.reference.name == reference.name]
        models = [m for m in models if reference.revision in ("", m.revision)]
        for model in models:
            shutil.rmtree(model.path)
        return sum(model.size for model in models)


def put_on_shelf(name: str, source: Path, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let `shelf://NAME` be the model in `source`, with an empty cache in `directory`."""
    monkeypatch.setitem(SOURCES, "shelf", ROW)
    monkeypatch.setenv(ROOT, str(directory / "shelf"))
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(directory / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(directory / "hf"))
    monkeypatch.setenv("MINDSPORE_SERVING_SOURCES", "shelf")
    target = directory / "shelf" / name / "main"
    target.parent.mkdir(parents=True)
    shutil.copytree(source, target)
