"""Files at an address: `https://HOST/PATH`, kept by address below the cache of this package."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.download import FileDownload, fetch_all
from mindspore_serving.hub.http import HttpClient, validator_of
from mindspore_serving.hub.records import read_record, recorded, remove_directory, write_record
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile, cache_directory

_SHA256 = re.compile(r"(?:sha256[=:])([0-9a-fA-F]{64})")
_ADVICE = "credentials for a host are read from ~/.netrc"


class Web:
    """Source of `https://` and `http://`: one file, an archive too."""

    scheme = "https"

    def list_files(self, reference: Reference) -> Listing:
        """Return the file at the address, with the size that its server tells."""
        url, sha256 = self._url(reference)
        response = HttpClient(advice=_ADVICE).head(url, str(reference))
        length = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        size = int(length) if length.isdecimal() else -1
        file = RemoteFile(_name_of(url, response.headers, response.url), size, sha256)
        version = validator_of(response.headers).strip('"')
        return Listing(sha256 or version or "unknown version", (file,), is_whole=True)

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the file, if it is downloaded."""
        directory = self._directory(reference)
        record = read_record(directory)
        path = directory / str(record.get("entry", ""))
        return path if record and path.is_file() else None

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download the file, again if its server has another version than the one that is here."""
        url, _ = self._url(reference)
        directory = self._directory(reference)
        target = directory / files[0].path
        if read_record(directory).get("revision") != listing.revision:
            target.unlink(missing_ok=True)
        opener = HttpClient(advice=_ADVICE).open_at(url, str(reference))
        file = files[0]
        fetch_all([FileDownload(str(reference), target, opener, file.size, file.sha256)], report)
        write_record(directory, reference, listing, entry=file.path)
        return target

    def list_cached(self) -> list[CachedModel]:
        """Return the files that are downloaded."""
        return recorded(self.scheme)

    def remove_cached(self, reference: Reference) -> int:
        """Remove the file; return its bytes."""
        return remove_directory(self._directory(reference))

    def _url(self, reference: Reference) -> tuple[str, str]:
        """Return the address, and the SHA-256 that #sha256=... behind it names."""
        url, _, fragment = f"{self.scheme}://{reference.name}".partition("#")
        match = _SHA256.fullmatch(fragment)
        if fragment and not match:
            raise InvalidInputs(f"{reference} ends with #{fragment}, expected #sha256=HEX")
        return url, match[1].lower() if match else ""

    def _directory(self, reference: Reference) -> Path:
        url, _ = self._url(reference)
        return cache_directory(self.scheme) / hashlib.sha256(url.encode()).hexdigest()[:32]


class PlainWeb(Web):
    """Source of `http://`."""

    scheme = "http"


def _name_of(url: str, headers: Mapping[str, str], final_url: str) -> str:
    """Return a file name: the last part of the address, or what the server names."""
    disposition = re.search(r'filename="?([^";]+)', headers.get("Content-Disposition", ""))
    candidates = [
        urlsplit(url).path,
        disposition[1] if disposition else "",
        urlsplit(final_url).path,
    ]
    names = [
        re.sub(r"[^A-Za-z0-9._-]", "_", unquote(path).rpartition("/")[2]).lstrip(".-")
        for path in candidates
    ]
    return next((name for name in names if "." in name), next(filter(None, names), "model"))
