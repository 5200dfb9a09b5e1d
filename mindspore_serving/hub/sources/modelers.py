"""Repositories of Modelers (openMind) by its HTTP API, in the cache of its library.

The library pins a release of requests, so it cannot be installed beside the others.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from mindspore_serving.errors import NotFound, StartError
from mindspore_serving.hub.download import FileDownload, fetch_in_order, write_atomically
from mindspore_serving.hub.http import HttpClient
from mindspore_serving.hub.records import recent_use, remove_directory, size_of
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile

_ENDPOINT = "https://modelers.cn"
_DEFAULT_REVISION = "main"
_ADVICE = "set OPENMIND_HUB_TOKEN to a token of an account that may read it"
_MAX_DIRECTORIES = 500
_HEX = frozenset("0123456789abcdef")


class Modelers:
    """Source of `modelers://ORG/NAME`."""

    def __init__(self) -> None:
        token = os.environ.get("OPENMIND_HUB_TOKEN", "")
        self._endpoint = (os.environ.get("OPENMIND_HUB_ENDPOINT") or _ENDPOINT).rstrip("/")
        self._client = HttpClient(f"Bearer {token}" if token else "", advice=_ADVICE)

    def list_files(self, reference: Reference) -> Listing:
        """Return the files of a repository at the commit that its revision is now."""
        model = self._get(reference, "model", ref=reference.revision or _DEFAULT_REVISION)
        root, files = self._list(reference)
        last = root.get("last_commit")
        commit = str(((last or {}).get("commit") or {}).get("commit_sha") or "")
        if len(commit) != 40 or not _HEX.issuperset(commit):
            raise StartError(f"{self._endpoint} tells no commit of {reference}")
        labels = model.get("labels")
        licence = labels.get("license") if isinstance(labels, dict) else model.get("license")
        names = licence if isinstance(licence, list) else [licence or ""]
        return Listing(
            commit,
            tuple(
                RemoteFile(
                    str(row["path"]), int(row["size"]), _etag(row) if row.get("is_lfs") else ""
                )
                for row in files
            ),
            ", ".join(map(str, names)),
        )

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the snapshot of the revision, if it has all that the model needs."""
        repository, revision = _repository(reference), reference.revision or _DEFAULT_REVISION
        ref = repository / "refs" / revision
        commit = ref.read_text().strip() if ref.is_file() else revision
        snapshot = repository / "snapshots" / commit
        return snapshot if find_complete(snapshot, reference.file) else None

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download files at a commit as blobs, and link them into the snapshot of the commit."""
        repository = _repository(reference)
        snapshot = repository / "snapshots" / listing.revision
        _, rows = self._list(Reference("modelers", reference.name, listing.revision))
        etags = {str(row["path"]): _etag(row) for row in rows}
        base = f"{self._endpoint}/api/v1/file/{reference.name}/{listing.revision}/media"
        downloads = []
        for file in files:
            if file.path not in etags:
                raise NotFound(f"{reference} has no {file.path} at {listing.revision}")
            what = f"{file.path} of {reference}"
            opener = self._client.open_at(f"{base}/{quote(file.path)}", what)
            target = repository / "blobs" / etags[file.path]
            downloads.append(FileDownload(what, target, opener, file.size, file.sha256))
        fetch_in_order(downloads, files, report)
        for file, download in zip(files, downloads, strict=True):
            if not file.sha256:
                _check_git_hash(download)
            _link(snapshot / file.path, download.target)
        revision = reference.revision or _DEFAULT_REVISION
        if revision != listing.revision:
            write_atomically(repository / "refs" / revision, listing.revision)
        return snapshot

    def list_cached(self) -> list[CachedModel]:
        """Return each revision in the library's cache."""
        models = []
        for path in sorted(_cache().glob("models--*/snapshots/*")):
            repository = path.parent.parent
            refs = repository / "refs"
            names = [
                ref.relative_to(refs).as_posix()
                for ref in refs.rglob("*")
                if ref.is_file() and ref.read_text().strip() == path.name
            ]
            name = repository.name.removeprefix("models--").replace("--", "/", 1)
            reference = Reference("modelers", name, min(names, default=path.name))
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            models.append(CachedModel(reference, path.name, path, size, recent_use(path)))
        return models

    def remove_cached(self, reference: Reference) -> int:
        """Remove a revision, or all of a repository, and the blobs that no other revision has."""
        repository = _repository(reference)
        before = size_of(repository)
        for model in self.list_cached():
            names = ("", model.revision, model.reference.revision)
            if model.reference.name == reference.name and reference.revision in names:
                remove_directory(model.path)
        used = {link.resolve() for link in (repository / "snapshots").rglob("*") if link.is_file()}
        if not used:
            return remove_directory(repository) + before - size_of(repository) if before else 0
        for blob in (repository / "blobs").iterdir():
            if blob.resolve() not in used:
                blob.unlink()
        return before - size_of(repository)

    def _get(self, reference: Reference, kind: str, **query: str) -> dict[str, Any]:
        """Return the `data` of an answer of the API about a repository."""
        url = f"{self._endpoint}/api/v1/{kind}/{reference.name}?{urlencode(query)}"
        answer = self._client.get_json(url, str(reference))
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            message = str(answer.get("msg"))[:200] if isinstance(answer, dict) else "no object"
            raise StartError(f"{self._endpoint} answers to {reference}: {message}")
        return data

    def _list(self, reference: Reference) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the answer for the root, and the files of all directories."""
        revision = reference.revision or _DEFAULT_REVISION
        root = data = self._get(reference, "file", ref=revision, path="")
        files: list[dict[str, Any]] = []
        directories: list[str] = []
        for _ in range(_MAX_DIRECTORIES):
            for row in data.get("tree") or ():
                if row.get("type") == "dir":
                    directories.append(str(row["path"]))
                else:
                    files.append(row)
            if not directories:
                return root, files
            data = self._get(reference, "file", ref=revision, path=directories.pop())
        raise StartError(f"{reference} has over {_MAX_DIRECTORIES} directories")


def _cache() -> Path:
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(user) / "openmind" / "hub"


def _repository(reference: Reference) -> Path:
    return _cache() / f"models--{reference.name.replace('/', '--')}"


def _etag(row: dict[str, Any]) -> str:
    """Return the hash of a file, which is the name of its blob: of large ones the SHA-256."""
    etag = str(row.get("etag") or "").strip('"')
    if len(etag) not in (40, 64) or not _HEX.issuperset(etag):
        raise StartError(f"the source lists {row.get('path')!r} with the hash {etag!r:.100}")
    return etag


def _check_git_hash(download: FileDownload) -> None:
    """Raise StartError for a small file whose contents are not those of its name in Git."""
    body = download.target.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    if digest != download.target.name:
        download.target.unlink()
        raise StartError(
            f"{download.name} was downloaded with the hash {digest}, expected "
            f"{download.target.name}: it is removed; try again"
        )


def _link(path: Path, blob: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        path.symlink_to(os.path.relpath(blob, path.parent))
