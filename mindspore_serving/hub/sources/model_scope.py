"""Repositories of ModelScope by its HTTP API, in the cache of its library, whose token is read.

The library itself retries for minutes and asks for the cloud's region; this is its wire form.
"""

import os
import pickletools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mindspore_serving.errors import NotFound, StartError, did_you_mean
from mindspore_serving.hub.download import FileDownload, fetch_in_order
from mindspore_serving.hub.http import HttpClient
from mindspore_serving.hub.records import recent_use, remove_directory, size_of
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile

_ENDPOINT = "https://modelscope.cn"
_DEFAULT_REVISION = "master"
_ADVICE = "set MODELSCOPE_API_TOKEN to a token of an account that may read it"
_MAX_ENTRIES = 3000  # of one answer, which says nothing of the rest
_MAX_DIRECTORIES = 200
_MAX_COOKIES = 1 << 20  # bytes


class ModelScope:
    """Source of `ms://ORG/NAME`."""

    def __init__(self) -> None:
        token = _token()
        endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").strip() or _ENDPOINT
        self._endpoint = (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")
        self._client = HttpClient(
            f"Bearer {token}" if token else "",
            cookie=f"m_session_id={token}" if token else "",
            advice=_ADVICE,
        )

    def list_files(self, reference: Reference) -> Listing:
        """Return the files of a repository at the commit that its revision is now."""
        model = self._get(reference, "")
        revision = reference.revision or _DEFAULT_REVISION
        listing = self._list(reference, revision, "")
        files = listing.get("Files")
        if not isinstance(files, list):  # an unknown revision is answered with 200
            known = self._revisions(reference)
            raise NotFound(
                f"{reference.name} has no revision {revision!r}{did_you_mean(revision, known)}; "
                f"its revisions are {', '.join(known[:12])}"
            )
        entries = list(self._complete(reference, revision, files))
        return Listing(
            _commit(listing, entries) or revision,
            tuple(
                RemoteFile(str(entry["Path"]), int(entry["Size"]), str(entry.get("Sha256") or ""))
                for entry in entries
            ),
            str(model.get("License") or ""),
        )

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the directory of the revision, if it has all that the model needs."""
        directory = _directory(reference)
        return directory if find_complete(directory, reference.file) else None

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download files at a commit to the directory that the library has for the revision."""
        directory = _directory(reference)
        base = f"{self._endpoint}/api/v1/models/{reference.name}/repo"
        downloads = []
        for file in files:
            query = urlencode({"Revision": listing.revision, "FilePath": file.path})
            what = f"{file.path} of {reference}"
            opener = self._client.open_at(f"{base}?{query}", what)
            target = directory / file.path
            downloads.append(FileDownload(what, target, opener, file.size, file.sha256))
        fetch_in_order(downloads, files, report)
        return directory

    def list_cached(self) -> list[CachedModel]:
        """Return the repositories in the library's cache, of both of its layouts."""
        models = []
        for path in sorted((_cache() / "models").glob("*--*/snapshots/*")):
            owner, _, name = path.parent.parent.name.partition("--")
            models.append(_cached(Reference("ms", f"{owner}/{name}", path.name), path))
        for root in (_cache() / "models", _cache() / "hub" / "models"):
            for path in sorted(root.glob("*/*")):
                if "--" not in path.parent.name and path.is_dir():
                    name = path.name.replace("___", ".")
                    models.append(_cached(Reference("ms", f"{path.parent.name}/{name}"), path))
        return models

    def remove_cached(self, reference: Reference) -> int:
        """Remove one revision of a repository, all if none is named; return the bytes freed."""
        return sum(
            remove_directory(model.path)
            for model in self.list_cached()
            if model.reference.name == reference.name
            and reference.revision in ("", model.reference.revision)
        )

    def _get(self, reference: Reference, path: str, **query: str) -> dict[str, Any]:
        """Return the `Data` of an answer of the API about a repository."""
        url = f"{self._endpoint}/api/v1/models/{reference.name}{path}"
        url += f"?{urlencode(query)}" if query else ""
        answer = self._client.get_json(url, str(reference))
        data = answer.get("Data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            message = str(answer.get("Message"))[:200] if isinstance(answer, dict) else "no object"
            raise StartError(f"{self._endpoint} answers to {reference}: {message}")
        return data

    def _list(self, reference: Reference, revision: str, root: str) -> dict[str, Any]:
        more = {"Root": root} if root else {}
        return self._get(reference, "/repo/files", Revision=revision, Recursive="True", **more)

    def _complete(
        self, reference: Reference, revision: str, files: list[Any]
    ) -> Iterator[dict[str, Any]]:
        """Iterate over files; a list that was cut is completed from those of its directories."""
        entries = [entry for entry in files if isinstance(entry, dict)]
        if len(files) >= _MAX_ENTRIES:
            roots = sorted({str(row["Path"]) for row in entries if row.get("Type") == "tree"})
            for root in roots[:_MAX_DIRECTORIES]:
                entries += self._list(reference, revision, root).get("Files") or []
        unique = {str(entry.get("Path")): entry for entry in entries}
        return (entry for entry in unique.values() if entry.get("Type") != "tree")

    def _revisions(self, reference: Reference) -> list[str]:
        answer = self._get(reference, "/revisions").get("RevisionMap") or {}
        rows = [*(answer.get("Branches") or ()), *(answer.get("Tags") or ())]
        return [str(row.get("Revision")) for row in rows]


def _commit(listing: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """Return the commit of the list: files tell that of their last change, the list its start."""
    latest = listing.get("LatestCommitter") or {}
    if latest.get("Id"):
        return str(latest["Id"])
    short = str(latest.get("ShortId") or "")
    commits = (str(entry.get("Revision") or "") for entry in entries)
    return next((commit for commit in commits if short and commit.startswith(short)), "")


def _cache() -> Path:
    return Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope").expanduser()


def _directory(reference: Reference) -> Path:
    """Return where the library keeps a revision; older ones had a directory for all."""
    owner, _, name = reference.name.partition("/")
    for root in (_cache() / "models", _cache() / "hub" / "models"):
        directory = root / owner / name.replace(".", "___")
        if directory.is_dir() and any(directory.iterdir()):
            return directory
    revision = reference.revision or _DEFAULT_REVISION
    return _cache() / "models" / f"{owner}--{name}" / "snapshots" / revision


def _cached(reference: Reference, path: Path) -> CachedModel:
    return CachedModel(reference, reference.revision, path, size_of(path), recent_use(path))


def _token() -> str:
    """Return the token of the library: its variable, else the file that `modelscope login` writes.

    The file is a pickle, which is not loaded: only its strings are read.
    """
    if "MODELSCOPE_API_TOKEN" in os.environ:
        return os.environ["MODELSCOPE_API_TOKEN"].strip()
    home = Path(os.environ.get("MODELSCOPE_HOME") or "~/.modelscope").expanduser()
    try:
        with (home / "credentials" / "cookies").open("rb") as file:
            texts = list(_strings(file.read(_MAX_COOKIES)))
    except (OSError, ValueError, IndexError):
        return ""
    before = ["name", "m_session_id", "value"]
    offsets = (i for i in range(3, len(texts)) if texts[i - 3 : i] == before)
    return next((texts[i] for i in offsets), "")


def _strings(pickled: bytes) -> Iterator[str]:
    """Iterate over the strings of a pickle, in order, without loading it."""
    memo: dict[int, str | None] = {}
    last: str | None = None
    for opcode, arg, _ in pickletools.genops(pickled):
        if opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if arg is None else arg] = last
            continue
        is_earlier = opcode.name in ("BINGET", "LONG_BINGET")
        last = memo.get(int(arg or 0)) if is_earlier else arg if isinstance(arg, str) else None
        if last is not None:
            yield last
