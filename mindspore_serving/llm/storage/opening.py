"""Opens the prefix cache on disk for a model: what its blocks depend on, and whether it can have
one."""

from pathlib import Path

from mindspore_serving import __version__
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_files import BlockFiles, open_directory
from mindspore_serving.llm.storage.block_threads import BlockThreads
from mindspore_serving.llm.storage.fingerprint import fingerprint


def open_blocks(
    checkpoint: Path, runtime: str, config: EngineConfig, runner: StoringRunner
) -> BlockThreads:
    """The files of the blocks of the model in `checkpoint`, in `config.prefix_cache_dir`.

    Raises StartError: the model has states, the directory cannot be used, not one block fits.
    """
    assert config.prefix_cache_dir
    if runner.num_slots:
        raise StartError(
            "prefix_cache_dir is given, but the model has layers with a state, which is not kept "
            "on disk; leave it out"
        )
    directory = open_directory(config.prefix_cache_dir)
    parts = (
        __version__, runtime, runner.block_format, runner.block_size, config.dtype,
        config.kv_cache_dtype, config.quantization, fingerprint(checkpoint, directory).hex(),
    )  # fmt: skip
    model = "\0".join(map(str, parts)).encode()
    most = config.prefix_cache_disk
    return BlockThreads(BlockFiles(directory, model, runner.block_bytes, most))
