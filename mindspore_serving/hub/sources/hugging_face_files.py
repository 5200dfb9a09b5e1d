"""Download of a file of Hugging Face into the cache of its library.

A large file is continued where an earlier run stopped, which the library does not do by itself.
"""

import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get

from mindspore_serving.errors import StartError
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.source import RemoteFile, sha256_of
from mindspore_serving.hub.sources import hugging_face_errors as errors


@dataclass(frozen=True, slots=True)
class Transfer:
    """Download of files of a repository at a commit."""

    reference: Reference  # its revision is a commit
    repository: Path  # in the cache
    cache: Path
    endpoint: str
    report: Callable[[int], None]

    def fetch(self, file: RemoteFile) -> None:
        """Download a file, and check its hash.  Raises ServingError."""
        try:
            if file.sha256:
                self._continue(file)
            path = hf_hub_download(
                self.reference.name,
                file.path,
                revision=self.reference.revision,
                endpoint=self.endpoint,
                cache_dir=self.cache,
                tqdm_class=_bar(self.report),
            )
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise errors.explain(error, self.reference, self.endpoint, (), file.path) from error
        if file.size >= 0 and os.path.getsize(path) != file.size:
            _refuse(Path(path), f"{os.path.getsize(path)} bytes", f"{file.size} bytes", file.path)

    def _continue(self, file: RemoteFile) -> None:
        """Put a large file into the cache by HTTP; Xet's storage is left to the library."""
        name, commit = self.reference.name, self.reference.revision
        url = hf_hub_url(name, file.path, revision=commit, endpoint=self.endpoint)
        metadata = get_hf_file_metadata(url, endpoint=self.endpoint, retry_on_errors=True)
        has_xet = metadata.xet_file_data is not None and not constants.HF_HUB_DISABLE_XET
        if has_xet or not re.fullmatch(r"[0-9A-Za-z_-]{1,128}", metadata.etag or ""):
            return
        blob = self.repository / "blobs" / str(metadata.etag)
        if blob.exists():
            self.report(max(file.size, 0))
            return
        is_hub = urlsplit(metadata.location).netloc == urlsplit(self.endpoint).netloc
        headers = errors.token_headers() if is_hub else {}  # another host gets no token
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f"{blob.name}.incomplete")
        with partial.open("ab") as target:
            fcntl.flock(target, fcntl.LOCK_EX)  # another process may be downloading it
            if blob.exists():
                return
            http_get(
                metadata.location,
                target,
                resume_size=target.tell(),
                headers=headers,
                expected_size=metadata.size,
                tqdm_class=_bar(self.report),
            )
            target.flush()
            digest = sha256_of(partial)
            if digest != file.sha256:
                _refuse(partial, f"SHA-256 {digest}", file.sha256, file.path)
            partial.replace(blob)


def _refuse(path: Path, actual: str, expected: str, name: str) -> None:
    """Remove a wrong download.  Raises StartError."""
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise StartError(
        f"{name} was downloaded with {actual}, expected {expected}: it is removed; try again, and "
        "look for a proxy that changes files"
    )


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
