"""Objects of buckets: `s3://BUCKET/PATH`, `gs://BUCKET/PATH` and `az://CONTAINER/PATH`.

By obstore, the Python form of Rust's object_store: one library without others for all three, where
s3fs, gcsfs and adlfs need thirty and older releases of ours.
"""

import configparser
import hashlib
import os
import re
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from mindspore_serving.errors import InvalidInputs, NotFound, ServingError, StartError
from mindspore_serving.hub.download import (
    FileDownload,
    Interrupted,
    OpenAt,
    RemoteContent,
    fetch_in_order,
)
from mindspore_serving.hub.records import read_record, recorded, remove_directory, write_record
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.selection import find_complete
from mindspore_serving.hub.source import CachedModel, Listing, RemoteFile, cache_directory

_MAX_OBJECTS = 10_000  # below one name
_CHUNK = 1 << 20
_WAITS = {"timeout": "1 day", "connect_timeout": "8 seconds", "read_timeout": "30 seconds"}
_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}  # the download has more
_ROLES = "169.254.169.254"  # where clouds tell machines their credentials
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


class BucketSource:
    """Source of one of the schemes; a class of each says how its store is opened."""

    scheme = ""
    advice = ""

    store_class: Any = None

    def arguments(self, bucket: str) -> dict[str, Any]:
        """Return the arguments of the store of a bucket besides its name."""
        raise NotImplementedError

    def open_store(self, bucket: str) -> Any:
        """Return the store of a bucket."""
        return self.store_class(bucket, **self.arguments(bucket))

    def list_files(self, reference: Reference) -> Listing:
        """Return the object, or the objects below a prefix, with their versions."""
        bucket, path = _split(reference)
        try:
            objects = self._objects(self.open_store(bucket), path, reference)
        except exceptions.BaseError as error:
            raise self._explained(error, reference) from error
        is_single = [row["path"] for row in objects] == [path]
        files = [RemoteFile(_relative(row["path"], path), int(row["size"])) for row in objects]
        self._versions = {
            file.path: str(row["e_tag"] or row["last_modified"])
            for file, row in zip(files, objects, strict=True)
        }
        revision = hashlib.sha256(repr(sorted(self._versions.items())).encode()).hexdigest()
        return Listing(revision, tuple(files), is_whole=is_single)

    def find_cached(self, reference: Reference) -> Path | None:
        """Return the file or the directory of a complete download."""
        directory = self._directory(reference)
        record = read_record(directory)
        if not record:
            return None
        if record.get("entry"):
            return directory / str(record["entry"])
        selection = find_complete(directory, reference.file)
        return directory / selection.entry if selection else None

    def fetch(
        self,
        reference: Reference,
        listing: Listing,
        files: Sequence[RemoteFile],
        report: Callable[[int], None],
    ) -> Path:
        """Download objects whose version is not the one that is here."""
        directory = self._directory(reference)
        bucket, path = _split(reference)
        known = read_record(directory).get("versions")
        versions = {file.path: self._versions[file.path] for file in files}
        store, downloads = self.open_store(bucket), []
        for file in files:
            target = directory / file.path
            if not isinstance(known, dict) or known.get(file.path) != versions[file.path]:
                target.unlink(missing_ok=True)
            key = path if listing.is_whole else f"{path}/{file.path}".lstrip("/")
            what = str(reference) if listing.is_whole else f"{file.path} of {reference}"
            opener = self._open_at(store, key, what)
            downloads.append(FileDownload(what, target, opener, file.size))
        fetch_in_order(downloads, files, report)
        name = files[0].path if listing.is_whole else ""
        write_record(directory, reference, listing, entry=name, versions=versions)
        return directory / name

    def list_cached(self) -> list[CachedModel]:
        """Return what is downloaded of the scheme."""
        return recorded(self.scheme)

    def remove_cached(self, reference: Reference) -> int:
        """Remove a download; return its bytes."""
        return remove_directory(self._directory(reference))

    def _objects(self, store: Any, path: str, reference: Reference) -> list[Any]:
        if path:
            try:
                return [obstore.head(store, path)]
            except (FileNotFoundError, exceptions.NotFoundError):
                pass  # a prefix
        objects: list[Any] = []
        for rows in obstore.list(store, path or None, chunk_size=1000):
            objects += [row for row in rows if row["size"] or not row["path"].endswith("/")]
            if len(objects) > _MAX_OBJECTS:
                raise StartError(f"{reference} has over {_MAX_OBJECTS} objects; name one of them")
        if not objects:
            raise NotFound(f"{reference} is neither an object nor a prefix of some")
        return objects

    def _open_at(self, store: Any, key: str, what: str) -> OpenAt:
        def open_at(offset: int, validator: str) -> RemoteContent:
            options: Any = {"range": {"offset": offset}} if offset else {}
            if offset and validator:
                options["if_match"] = validator
            try:
                result = obstore.get(store, key, options=options)
            except exceptions.PreconditionError:
                return open_at(0, "")
            except exceptions.BaseError as error:
                raise self._explained(error, what) from error
            except FileNotFoundError as error:
                raise NotFound(f"there is no {what}") from error
            total, version = int(result.meta["size"]), result.meta["e_tag"] or ""
            return RemoteContent(self._chunks(result, what), offset, total, version)

        return open_at

    def _chunks(self, result: Any, what: str) -> Generator[bytes, None, None]:
        try:
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except exceptions.BaseError as error:
            raise self._explained(error, what) from error

    def _explained(self, error: Exception, subject: object) -> ServingError:
        """Return one sentence for an error of the library, which has pages of them."""
        if isinstance(error, exceptions.NotFoundError):
            return NotFound(f"there is no {subject}; {self.advice}")
        if isinstance(error, _REFUSED):
            return StartError(f"{subject} is refused: no or wrong credentials; {self.advice}")
        text = re.split(r"\n\nDebug source|\n", str(error))[0][:300]
        if _ROLES in text:
            text = "no variable or file has credentials, and this machine has no role of the cloud"
        return Interrupted(f"{subject} cannot be read: {text}; {self.advice}")

    def _directory(self, reference: Reference) -> Path:
        name = hashlib.sha256(reference.name.rstrip("/").encode()).hexdigest()[:32]
        return cache_directory(self.scheme) / name


class S3(BucketSource):
    """Source of `s3://BUCKET/PATH`, of Amazon or of the server that AWS_ENDPOINT_URL names."""

    scheme, store_class = "s3", S3Store
    advice = (
        "AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION and AWS_ENDPOINT_URL are read, "
        "AWS_SKIP_SIGNATURE=true reads public buckets"
    )

    def arguments(self, bucket: str) -> dict[str, Any]:
        """Return the arguments of a bucket, with the keys of ~/.aws if no variable has them."""
        config: dict[str, Any] = {}
        if "AWS_ACCESS_KEY_ID" not in os.environ:
            config = _profile()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        return {"config": config, **_options(endpoint)}


class GoogleStorage(BucketSource):
    """Source of `gs://BUCKET/PATH`, of Google or of the server STORAGE_EMULATOR_HOST."""

    scheme, store_class = "gs", GCSStore
    advice = (
        "GOOGLE_APPLICATION_CREDENTIALS, the login of gcloud and STORAGE_EMULATOR_HOST are read, "
        "GOOGLE_SKIP_SIGNATURE=true reads public buckets"
    )

    def arguments(self, bucket: str) -> dict[str, Any]:
        """Return the arguments of a bucket; an emulator wants no signature."""
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        config: dict[str, Any] = {}
        if emulator:
            emulator = emulator if "://" in emulator else f"http://{emulator}"
            config = {"base_url": emulator, "skip_signature": True}
        return {"config": config, **_options(emulator)}


class Azure(BucketSource):
    """Source of `az://CONTAINER/PATH` of a storage account."""

    scheme, store_class = "az", AzureStore
    advice = (
        "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY "
        "and AZURE_STORAGE_SAS_TOKEN are read"
    )

    def arguments(self, bucket: str) -> dict[str, Any]:
        """Return the arguments of a container, by the connection string if there is one."""
        rows = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        parts = dict(row.partition("=")[::2] for row in rows)
        names = {
            "AccountName": "account_name",
            "AccountKey": "account_key",
            "SharedAccessSignature": "sas_key",
            "BlobEndpoint": "endpoint",
        }
        config: dict[str, Any] = {names[key]: parts[key] for key in names if parts.get(key)}
        endpoint = config.get("endpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT", "")
        if not config.get("account_name") and "AZURE_STORAGE_ACCOUNT_NAME" not in os.environ:
            raise InvalidInputs(f"az://{bucket} needs the name of its account: {self.advice}")
        return {"config": config, **_options(endpoint)}


def _options(endpoint: str) -> dict[str, Any]:
    """Return the options of a store; an endpoint whose address is http:// has no encryption."""
    client = {**_WAITS, "allow_http": endpoint.startswith("http://")}
    return {"client_options": client, "retry_config": _RETRIES}


def _split(reference: Reference) -> tuple[str, str]:
    bucket, _, path = reference.name.partition("/")
    return bucket, path.strip("/")


def _relative(key: str, path: str) -> str:
    """Return the path of an object below a prefix; of a single object its name."""
    return key.rpartition("/")[2] if key == path else key.removeprefix(path).lstrip("/")


def _profile() -> dict[str, str]:
    """Return the keys and the region of AWS_PROFILE in the files of Amazon's command line."""
    profile = os.environ.get("AWS_PROFILE", "default")
    parser = configparser.RawConfigParser()
    paths = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
    try:
        parser.read(os.environ.get(var) or os.path.expanduser(f"~/.aws/{n}") for var, n in paths)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidInputs(f"the files of ~/.aws cannot be read: {error}") from error
    rows: dict[str, str] = {}
    for section in (profile, f"profile {profile}"):
        rows |= dict(parser[section]) if parser.has_section(section) else {}
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
    }
    if {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
        rows.pop("region", None)
    return {names[key]: value for key, value in rows.items() if key in names}
