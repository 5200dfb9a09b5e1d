"""Kinds of stores that servers share, by the scheme of a URL.  Knows nothing of the values."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mindspore_serving import extras
from mindspore_serving.errors import StartError, reason
from mindspore_serving.stores.base import StoreOptions, ValueStore
from mindspore_serving.stores.file_store import FileStore, open_directory

if TYPE_CHECKING:
    from mindspore_serving.stores.shared_counts import SharedCounts

MIN_SECRET = 16  # bytes


class StoreKind(NamedTuple):
    """Kind of store: what opens it, and how many values are read at the same time."""

    open: Callable[[StoreOptions], ValueStore]
    num_readers: int = 4


def open_store(options: StoreOptions) -> tuple[ValueStore, int]:
    """Open a store; return it, and how many values are to be read at the same time.

    Raises StartError: the URL is wrong, a library is missing, or the password is refused.  A server
    that is gone is only logged.
    """
    kind = kind_of(options.url)
    try:
        import zstandard  # noqa: F401  # also reads what other servers have compressed

        return kind.open(options), kind.num_readers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, options.option)) from None


def kind_of(url: str) -> StoreKind:
    """Return the kind of store that a URL names."""
    return KINDS.get(url.partition("://")[0], _OBJECTS)


def read_secret(option: str, path: str) -> bytes:
    """Return the secret in the file of `option`; b"" without one.  Raises StartError."""
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise StartError(f"{option} is {path!r}, which cannot be read: {reason(error)}") from None
    if len(secret) < MIN_SECRET:
        raise StartError(
            f"{option} is {path!r}, which has {len(secret)} bytes, expected at least "
            f"{MIN_SECRET}, as `openssl rand -hex 32` writes"
        )
    return secret


def _open_redis(options: StoreOptions) -> ValueStore:
    from mindspore_serving.stores.redis_store import RedisStore

    return RedisStore(options)


def _open_files(options: StoreOptions) -> ValueStore:
    path = options.url.removeprefix("file://")
    if not path.startswith("/"):
        raise StartError(f"{options.option} is {options.url!r}, expected file:///DIRECTORY")
    return FileStore(open_directory(path, options.option), options.bounds)


def _open_objects(options: StoreOptions) -> ValueStore:
    from mindspore_serving.stores.object_store import ObjectStore

    return ObjectStore(options)


def open_counts(option: str, url: str, timeout: float) -> "SharedCounts":
    """Open the counts of servers.  Raises StartError, also for a store that cannot count."""
    if kind_of(url) is not _REDIS:
        raise StartError(
            f"{option} is of a store that has no counters; expected a URL of Valkey or Redis, as "
            "rediss://HOST:6379/0"
        )
    try:
        from mindspore_serving.stores.shared_counts import SharedCounts

        return SharedCounts(option, url, timeout)
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, option)) from None


_REDIS, _OBJECTS = StoreKind(_open_redis), StoreKind(_open_objects, num_readers=8)
KINDS = {  # other schemes are those of fsspec
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), _REDIS),
    "file": StoreKind(_open_files),
    **dict.fromkeys(("s3", "gs", "az"), _OBJECTS),
}
