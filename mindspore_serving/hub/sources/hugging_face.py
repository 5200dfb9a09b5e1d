"""Repositories of Hugging Face by its library, whose cache, tokens and variables are shared."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_download, scan_cache_dir
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mindspore_serving.errors import InvalidInputs, NotFound, StartError
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete, is_weights
from mindspore_serving.hub.source import (
    CachedModel,
    Listing,
    RemoteFile,
    Unreachable,
    check_room,
    sha256_of,
)

_TIMEOUT = 8  # seconds for the list of files
_WORKERS = 8  # files downloaded at the same time


class HuggingFace:
    """Source of `hf://ORG/NAME`."""

    def list_files(self, reference: Reference) -> Listing:
        """Return the files of a repository at the commit that its revision is now."""
        try:
            repository = HfApi().model_info(
                reference.name,
                revision=reference.revision or None,
                timeout=_TIMEOUT,
                files_metadata=True,
            )
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise _explained(reference, error) from error
        files = [
            RemoteFile(
                sibling.rfilename,
                -1 if sibling.size is None else sibling.size,
                _sha256(sibling.lfs),
            )
            for sibling in repository.siblings or ()
        ]
        card: Any = repository.card_data or {}
        return Listing(repository.sha or "", tuple(files), str(card.get("license") or ""))

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the snapshot of the revision, if it has all that the model needs."""
        repository = _repository(reference)
        revision = reference.revision or constants.DEFAULT_REVISION
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
        """Download files at a commit, settings first, so that weights mean a complete download."""
        snapshot = _repository(reference) / "snapshots" / listing.revision
        present = {file.path for file in files if (snapshot / file.path).exists()}
        missing = [file for file in files if file.path not in present]
        check_room(Path(constants.HF_HUB_CACHE), sum(max(file.size, 0) for file in missing))
        report(sum(max(file.size, 0) for file in files if file.path in present))
        for is_second in (False, True):
            part = [file for file in missing if is_weights(file) == is_second]
            with ThreadPoolExecutor(_WORKERS) as pool:
                jobs = [pool.submit(_fetch_file, reference, listing, file, report) for file in part]
                for job in jobs:
                    job.result()
        _write_ref(reference, listing.revision)
        return snapshot

    def list_cached(self) -> list[CachedModel]:
        """Return each revision in the cache of Hugging Face's library."""
        try:
            repositories = scan_cache_dir().repos
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
        scan = scan_cache_dir()
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


def _repository(reference: Reference) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{reference.name.replace('/', '--')}"


def _write_ref(reference: Reference, commit: str) -> None:
    """Note the commit of a branch or tag, as the library does, when the download is complete."""
    revision = reference.revision or constants.DEFAULT_REVISION
    if revision == commit:
        return
    ref = _repository(reference) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    temporary = ref.with_name(f"{ref.name}.{os.getpid()}")
    temporary.write_text(commit)
    temporary.replace(ref)


def _sha256(lfs: Any) -> str:
    return lfs.sha256 if lfs else ""


def _fetch_file(
    reference: Reference, listing: Listing, file: RemoteFile, report: Callable[[int], None]
) -> None:
    try:
        path = hf_hub_download(
            reference.name,
            file.path,
            revision=listing.revision,
            tqdm_class=_bar(report),
        )
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise _explained(reference, error, file.path) from error
    if file.sha256:
        _check_hash(Path(path), file)


def _bar(report: Callable[[int], None]) -> Any:
    """Return a class that the library treats as tqdm, and that calls `report`."""

    class _Bar:
        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            if initial:
                report(initial)

        def __enter__(self) -> "_Bar":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: int | None = 1) -> None:
            report(count or 0)

    return _Bar


def _check_hash(path: Path, file: RemoteFile) -> None:
    digest = sha256_of(path)
    if digest != file.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise StartError(
            f"{file.path} was downloaded with the SHA-256 {digest}, expected {file.sha256}: "
            "it is removed; try again, and look for a proxy that changes files"
        )


def _explained(reference: Reference, error: Exception, path: str = "") -> Exception:
    """Return the error for users: one sentence with the cause and what to do."""
    of_file = f"{path} of " if path else ""
    page = f"{constants.ENDPOINT}/{reference.name}"
    if isinstance(error, GatedRepoError):
        return StartError(
            f"{reference} is gated: accept its terms at {page}, and set HF_TOKEN to a token of "
            "that account"
        )
    if isinstance(error, RevisionNotFoundError):
        return NotFound(f"{reference.name} has no revision {reference.revision!r}: see {page}")
    if isinstance(error, RepositoryNotFoundError):
        return NotFound(
            f"{constants.ENDPOINT} has no model {reference.name}; if it is private, set HF_TOKEN"
        )
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return Unreachable(f"{constants.ENDPOINT} answered {status} to {of_file}{reference}")
    if isinstance(error, httpx2.HTTPError):
        return Unreachable(
            f"{constants.ENDPOINT} cannot be reached: {error or type(error).__name__}"
        )
    return InvalidInputs(f"{of_file}{reference} cannot be downloaded: {error}")
