"""Repositories of Hugging Face by its library, whose cache, tokens and variables are shared."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound, HfHubHTTPError

from mindspore_serving.errors import Cancelled, StartError
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete, is_weights
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile, check_room
from mindspore_serving.hub.sources import hugging_face_errors as errors
from mindspore_serving.hub.sources.hugging_face_files import Transfer
from mindspore_serving.hub.threads import run_all, within

_CONNECT_SECONDS = 4.0
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_MAX_SHOWN = 100
_WORKERS = 8  # files downloaded at the same time


class HuggingFace:
    """Source of `hf://ORG/NAME`."""

    def __init__(self) -> None:
        self._endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self._cache = Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)

    def list_files(self, reference: Reference) -> Listing:
        """Return the files of a repository at the commit that its revision is now."""
        seconds = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        timeout: Any = httpx2.Timeout(seconds, connect=_CONNECT_SECONDS)
        try:
            repository = within(
                seconds,
                lambda: HfApi(self._endpoint).model_info(
                    reference.name,
                    revision=reference.revision or None,
                    timeout=timeout,
                    files_metadata=True,
                ),
            )
        except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
            raise errors.explain(error, reference, self._endpoint, self._names()) from error
        files = [
            RemoteFile(file.rfilename, -1 if file.size is None else file.size, _sha256(file.lfs))
            for file in repository.siblings or ()
        ]
        commit = repository.sha or ""
        if not _COMMIT.fullmatch(commit):
            shown = commit[:_MAX_SHOWN]
            raise StartError(f"{self._endpoint} told {shown!r} for {reference}, expected a commit")
        card: Any = repository.card_data or {}
        return Listing(commit, tuple(files), str(card.get("license") or ""))

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the snapshot of the revision, if it has all that the model needs.

        Without a revision it is that of the default branch, or else the latest complete one:
        other programs may have moved the branch for a single file.
        """
        repository = self._repository(reference)
        revision = reference.revision or constants.DEFAULT_REVISION
        ref = repository / "refs" / revision
        snapshots = [repository / "snapshots" / (_read(ref) or revision)]
        if not reference.revision:
            later = (repository / "snapshots").glob("*")
            snapshots += sorted(later, key=lambda path: path.stat().st_mtime, reverse=True)
        complete = (path for path in snapshots if find_complete(path, reference.file))
        return next(complete, None)

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download files at a commit, settings first, so that weights mean a complete download."""
        repository = self._repository(reference)
        snapshot = repository / "snapshots" / listing.revision
        missing = [file for file in files if not (snapshot / file.path).exists()]
        present = [file for file in files if file not in missing]
        check_room(self._cache, sum(_remaining(repository, file) for file in missing))
        report(sum(max(file.size, 0) for file in present))
        pinned = replace(reference, revision=listing.revision)
        for is_second in (False, True):
            is_stopped = Event()
            more = partial(_report, report, is_stopped)
            transfer = Transfer(pinned, repository, self._cache, self._endpoint, more)
            part = [file for file in missing if is_weights(file) == is_second]
            run_all([partial(transfer.fetch, file) for file in part], _WORKERS, is_stopped)
        _write_ref(repository, reference.revision, listing.revision)
        return snapshot

    def list_cached(self) -> list[CachedModel]:
        """Return each revision in the cache of Hugging Face's library."""
        try:
            repositories = scan_cache_dir(self._cache).repos
        except CacheNotFound:
            return []
        return [
            CachedModel(
                Reference("hf", repo.repo_id, min(revision.refs, default="")),
                revision.commit_hash,
                revision.snapshot_path,
                revision.size_on_disk,
                repo.last_accessed,
            )
            for repo in repositories
            if repo.repo_type == "model"
            for revision in repo.revisions
        ]

    def remove_cached(self, reference: Reference) -> int:
        """Remove the revisions of a repository, or the single one that is named."""
        try:
            scan = scan_cache_dir(self._cache)
        except CacheNotFound:
            return 0
        commits = [
            revision.commit_hash
            for repo in scan.repos
            if repo.repo_type == "model" and repo.repo_id == reference.name
            for revision in repo.revisions
            if reference.revision in ("", revision.commit_hash, *revision.refs)
        ]
        if not commits:
            return 0
        strategy = scan.delete_revisions(*commits)
        strategy.execute()
        return strategy.expected_freed_size

    def _repository(self, reference: Reference) -> Path:
        return self._cache / f"models--{reference.name.replace('/', '--')}"

    def _names(self) -> list[str]:
        """Return the names of repositories in the cache, without reading them."""
        paths = sorted(self._cache.glob("models--*")) if self._cache.is_dir() else []
        return [path.name.removeprefix("models--").replace("--", "/") for path in paths]


def _remaining(repository: Path, file: RemoteFile) -> int:
    """Return the bytes that are still to come of a file, which the cache may have in part."""
    blob = repository / "blobs" / (file.sha256 or "none")  # a large file's ETag is its hash
    partial_blob = blob.with_name(f"{blob.name}.incomplete")
    sizes = [path.stat().st_size for path in (blob, partial_blob) if path.exists()]
    return max(file.size - sum(sizes), 0)


def _report(report: Callable[[int], None], is_stopped: Event, count: int) -> None:
    """Report bytes of a download that goes on.  Raises Cancelled when another has failed."""
    if is_stopped.is_set():
        raise Cancelled("the download was stopped")
    report(count)


def _read(ref: Path) -> str:
    """Return the commit in a file of the cache; "" if there is none."""
    return ref.read_text().strip() if ref.is_file() else ""


def _write_ref(repository: Path, revision: str, commit: str) -> None:
    """Note the commit of a branch or tag, as the library does, when the download is complete."""
    revision = revision or constants.DEFAULT_REVISION
    if revision == commit:
        return
    ref = repository / "refs" / revision
    temporary = ref.with_name(f"{ref.name}.{os.getpid()}")
    with suppress(OSError):  # a cache may be read-only, and its files are complete
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(commit)
        temporary.replace(ref)


def _sha256(lfs: Any) -> str:
    return lfs.sha256 if lfs else ""
