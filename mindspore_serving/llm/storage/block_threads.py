"""Threads that read and write the files of cache blocks, so that no step waits for a disk.

`open_blocks` opens them for one model, keyed by everything that its blocks depend on.
"""

import threading
import time
from pathlib import Path
from queue import SimpleQueue

from mindspore_serving import __version__, log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.step import StoringRunner
from mindspore_serving.llm.storage.block_files import BlockFiles, open_directory
from mindspore_serving.llm.storage.fingerprint import fingerprint

MAX_QUEUED = 64 << 20  # bytes in memory that are queued for writing


class BlockThreads:
    """A thread that reads `files` and a thread that writes them.

    `results` receives each block that was read: its digest, and its contents or None.
    """

    def __init__(self, files: BlockFiles) -> None:
        self.files = files
        self.results: SimpleQueue[tuple[bytes, memoryview | None]] = SimpleQueue()
        self.num_read = self.num_written = 0  # blocks
        self._num_queued = self._num_done = 0  # writes, and of these finished or failed
        self._max_queued = max(1, MAX_QUEUED // files.file_bytes)  # blocks
        self._reads: SimpleQueue[bytes | None] = SimpleQueue()
        self._writes: SimpleQueue[tuple[bytes, memoryview] | None] = SimpleQueue()
        self._is_closed = False
        self._is_failing = False
        self._threads = [
            threading.Thread(target=run, name=f"prefix cache {name}", daemon=True)
            for name, run in (("reads", self._read), ("writes", self._write))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_room(self) -> bool:
        """True if another block can be queued for writing."""
        return self._num_queued - self._num_done < self._max_queued

    @property
    def is_writing(self) -> bool:
        return self._num_done < self._num_queued

    def read(self, digest: bytes) -> None:
        self._reads.put(digest)

    def write(self, digest: bytes, content: memoryview) -> None:
        self._num_queued += 1
        self._writes.put((digest, content))

    def close(self, seconds: float) -> None:
        """Write the queued blocks for at most `seconds`, and end."""
        deadline = time.monotonic() + seconds
        self._reads.put(None)
        self._writes.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        if any(thread.is_alive() for thread in self._threads):
            log.warning(
                "not all queued blocks of the prefix cache were written within %g s", seconds
            )

    def _read(self) -> None:
        for digest in iter(self._reads.get, None):
            content = self.files.read(digest)
            self.num_read += content is not None
            self.results.put((digest, content))

    def _write(self) -> None:
        for digest, content in iter(self._writes.get, None):
            if self._is_closed:
                return
            try:
                self.files.write(digest, content)
                self.num_written += 1
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:  # one line for a full disk, not one per block
                    log.warning("a block of the prefix cache cannot be written: %s", error)
                self._is_failing = True
            self._num_done += 1


def open_blocks(
    checkpoint: Path, runtime: str, config: EngineConfig, runner: StoringRunner
) -> BlockThreads:
    """Open the block files of the model in `checkpoint`, in `config.prefix_cache_dir`.

    Raises StartError: the model has recurrent states, the directory cannot be used, or the limit is
    smaller than one block.
    """
    assert config.prefix_cache_dir
    if runner.num_slots:
        raise StartError(
            "prefix_cache_dir is set, but the model has layers with recurrent states, which are "
            "not kept on disk; leave it out"
        )
    directory = open_directory(config.prefix_cache_dir)
    parts = (
        __version__, runtime, runner.block_format, runner.block_size, config.dtype,
        config.kv_cache_dtype, config.quantization, fingerprint(checkpoint, directory).hex(),
    )  # fmt: skip
    model = "\0".join(map(str, parts)).encode()
    max_bytes = config.prefix_cache_disk
    return BlockThreads(BlockFiles(directory, model, runner.block_bytes, max_bytes))
