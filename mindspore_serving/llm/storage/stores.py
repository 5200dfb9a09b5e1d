"""The levels of an engine's prefix cache: the disk, and a store that servers share."""

from pathlib import Path

from mindspore_serving import __version__
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_level import BlockLevel
from mindspore_serving.llm.storage.block_values import BlockValues, Compression
from mindspore_serving.llm.storage.fingerprint import fingerprint, fingerprints_directory
from mindspore_serving.stores.base import StoreOptions
from mindspore_serving.stores.bounds import StoreBounds
from mindspore_serving.stores.file_store import FileStore, open_directory
from mindspore_serving.stores.kinds import open_store, read_secret


def open_levels(
    checkpoint: Path, runtime: str, config: EngineConfig, runner: StoringRunner
) -> list[BlockLevel]:
    """Open the disk and the shared store of `config` for the model in `checkpoint`.

    Raises StartError: recurrent states cannot be stored, or a level cannot be opened.
    """
    if runner.num_slots and not (getattr(runner, "state_bytes", 0) and runner.block_bytes):
        name = "prefix_cache_dir" if config.prefix_cache_dir else "prefix_cache_store"
        raise StartError(
            f"{name} is set, but the model has layers with recurrent states and none with keys and "
            "values, so no blocks are stored; leave it out"
        )
    path = config.prefix_cache_dir
    directory = open_directory(path) if path else None
    model = model_key(checkpoint, runtime, config, runner, directory).encode()
    levels = []
    if directory is not None:
        levels.append(open_disk(directory, model, runner.block_bytes, config.prefix_cache_disk))
    if config.prefix_cache_store:
        levels.append(open_shared(config, model, runner.block_bytes))
    return levels


def model_key(
    checkpoint: Path,
    runtime: str,
    config: EngineConfig,
    runner: StoringRunner,
    remembered: Path | None = None,
) -> str:
    """Return everything that the blocks of a model depend on besides their tokens.

    The directory `remembered` has hashes of files; None for that of this user.
    """
    directory = remembered or fingerprints_directory()
    parts = (
        __version__, runtime, runner.block_format, runner.block_size, config.dtype,
        config.kv_cache_dtype, config.quantization, fingerprint(checkpoint, directory).hex(),
    )  # fmt: skip
    return "\0".join(map(str, parts))


def open_disk(directory: Path, model: bytes, block_bytes: int, max_bytes: int) -> BlockLevel:
    """Open the files of a directory of this machine, as `open_directory` returns it."""
    values = BlockValues(model, block_bytes)
    _check_size("prefix_cache_disk", max_bytes, values)
    store = FileStore(directory, StoreBounds(max_bytes, values.max_bytes))
    return BlockLevel("disk", store, values, max_blocks=max_bytes // values.max_bytes)


def open_shared(config: EngineConfig, model: bytes, block_bytes: int) -> BlockLevel:
    """Open the store that servers share."""
    compression = Compression(config.prefix_cache_store_compression)
    secret = read_secret("prefix_cache_store_key", config.prefix_cache_store_key)
    values = BlockValues(model, block_bytes, secret, compression)
    size = config.prefix_cache_store_size
    _check_size("prefix_cache_store_size", size, values)
    options = StoreOptions(
        "prefix_cache_store",
        config.prefix_cache_store,
        max_bytes=size,
        value_bytes=values.max_bytes,
        max_seconds=config.prefix_cache_store_seconds,
        timeout=config.prefix_cache_store_timeout,
    )
    store, num_readers = open_store(options)
    return BlockLevel(
        "store",
        store,
        values,
        max_blocks=size // values.max_bytes,
        is_local=False,
        patience=options.timeout,
        num_readers=num_readers,
    )


def _check_size(option: str, size: int, values: BlockValues) -> None:
    if values.max_bytes > size:
        raise StartError(
            f"{option} is {size} bytes, expected at least {values.max_bytes}, the size of one block"
        )
