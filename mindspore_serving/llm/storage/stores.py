"""Kinds of stores that servers share, by the scheme of a URL, and the levels of an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mindspore_serving import __version__, extras
from mindspore_serving.errors import StartError, reason
from mindspore_serving.hub.source import cache_directory
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_files import BlockFiles, open_directory
from mindspore_serving.llm.storage.block_level import BlockLevel, BlockStore
from mindspore_serving.llm.storage.block_values import BlockValues, Compression
from mindspore_serving.llm.storage.bounds import StoreBounds
from mindspore_serving.llm.storage.fingerprint import fingerprint

MIN_SECRET = 16  # bytes


class StoreKind(NamedTuple):
    """Kind of store: what opens it, and how many blocks are read at the same time."""

    open: Callable[[EngineConfig, StoreBounds], BlockStore]
    num_readers: int = 4


def _open_redis(config: EngineConfig, bounds: StoreBounds) -> BlockStore:
    from mindspore_serving.llm.storage.redis_store import RedisStore

    url = config.prefix_cache_store
    url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
    seconds, timeout = config.prefix_cache_store_seconds, config.prefix_cache_store_timeout
    try:
        store = RedisStore(url, bounds, max_seconds=seconds, timeout=timeout)
    except (TypeError, ValueError):  # whose text may have a part of a password
        raise StartError(
            "prefix_cache_store is no URL of a server, expected one as rediss://HOST:6379/0, with "
            "special characters of a password as %XX"
        ) from None
    store.check()
    return store


def _open_files(config: EngineConfig, bounds: StoreBounds) -> BlockStore:
    path = config.prefix_cache_store.removeprefix("file://")
    if not path.startswith("/"):
        raise StartError(
            f"prefix_cache_store is {config.prefix_cache_store!r}, expected file:///DIRECTORY"
        )
    return BlockFiles(open_directory(path, "prefix_cache_store"), bounds)


def _open_objects(config: EngineConfig, bounds: StoreBounds) -> BlockStore:
    from mindspore_serving.llm.storage.object_store import ObjectStore

    timeout = config.prefix_cache_store_timeout
    return ObjectStore(config.prefix_cache_store, bounds, timeout=timeout)


_REDIS, _OBJECTS = StoreKind(_open_redis), StoreKind(_open_objects, num_readers=8)
STORES = {  # other schemes are those of fsspec
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), _REDIS),
    "file": StoreKind(_open_files),
    **dict.fromkeys(("s3", "gs", "az"), _OBJECTS),
}


def open_levels(
    checkpoint: Path, runtime: str, config: EngineConfig, runner: StoringRunner
) -> list[BlockLevel]:
    """Open the disk and the shared store of `config` for the model in `checkpoint`.

    Raises StartError: the model has recurrent states, or a level cannot be opened.
    """
    if runner.num_slots:
        name = "prefix_cache_dir" if config.prefix_cache_dir else "prefix_cache_store"
        raise StartError(
            f"{name} is set, but the model has layers with recurrent states, which are kept in "
            "memory alone; leave it out"
        )
    path = config.prefix_cache_dir
    remembered = open_directory(path) if path else cache_directory("fingerprints")
    remembered.mkdir(mode=0o700, parents=True, exist_ok=True)
    parts = (
        __version__, runtime, runner.block_format, runner.block_size, config.dtype,
        config.kv_cache_dtype, config.quantization, fingerprint(checkpoint, remembered).hex(),
    )  # fmt: skip
    model = "\0".join(map(str, parts)).encode()
    levels = []
    if path:
        levels.append(open_disk(remembered, model, runner.block_bytes, config.prefix_cache_disk))
    if config.prefix_cache_store:
        levels.append(open_shared(config, model, runner.block_bytes))
    return levels


def open_disk(directory: Path, model: bytes, block_bytes: int, max_bytes: int) -> BlockLevel:
    """Open the files of a directory of this machine, as `open_directory` returns it."""
    values = BlockValues(model, block_bytes)
    bounds = _bounds("prefix_cache_disk", max_bytes, values)
    max_blocks = max_bytes // values.max_bytes
    return BlockLevel("disk", BlockFiles(directory, bounds), values, max_blocks=max_blocks)


def open_shared(config: EngineConfig, model: bytes, block_bytes: int) -> BlockLevel:
    """Open the store that servers share."""
    scheme = config.prefix_cache_store.partition("://")[0]
    kind = STORES.get(scheme, _OBJECTS)
    compression = Compression(config.prefix_cache_store_compression)
    secret = _read_secret(config.prefix_cache_store_key)
    values = BlockValues(model, block_bytes, secret, compression)
    size, seconds = config.prefix_cache_store_size, config.prefix_cache_store_seconds
    try:
        import zstandard  # noqa: F401  # also reads what other servers have compressed

        store = kind.open(config, _bounds("prefix_cache_store_size", size, values, seconds))
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "prefix_cache_store")) from None
    return BlockLevel(
        "store",
        store,
        values,
        max_blocks=size // values.max_bytes,
        is_local=False,
        patience=config.prefix_cache_store_timeout,
        num_readers=kind.num_readers,
    )


def _bounds(option: str, size: int, values: BlockValues, seconds: float = 0.0) -> StoreBounds:
    if values.max_bytes > size:
        raise StartError(
            f"{option} is {size} bytes, expected at least {values.max_bytes}, the size of one block"
        )
    return StoreBounds(size, values.max_bytes, seconds)


def _read_secret(path: str) -> bytes:
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise StartError(
            f"prefix_cache_store_key is {path!r}, which cannot be read: {reason(error)}"
        ) from None
    if len(secret) < MIN_SECRET:
        raise StartError(
            f"prefix_cache_store_key is {path!r}, which has {len(secret)} bytes, expected at least "
            f"{MIN_SECRET}, as `openssl rand -hex 32` writes"
        )
    return secret
