"""What the machine can do at most: bytes read and multiplications per second, on all cores.

`python -m benchmarks.llm_machine` prints both as JSON.  The array that is read has the size of the
model's matrices in bfloat16, so that caches help it as much as them.  The matrix product is
torch's (MKL), so this runs where transformers does.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np

from benchmarks.llm_contenders import environment
from benchmarks.llm_model import num_multiplied
from benchmarks.llm_process import alone
from benchmarks.processes import ROOT

ROUNDS = 10


def best(run: Callable[[], object]) -> float:
    """Seconds of the fastest of ROUNDS calls."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def read_rate(size: int) -> float:
    """Bytes per second of reading `size` bytes once, a thread on every core."""
    count = os.cpu_count() or 1
    parts = np.array_split(np.ones(size // 8, np.uint64), count)

    def read() -> None:
        threads = [Thread(target=part.max) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return sum(part.nbytes for part in parts) / best(read)


def flop_rate(size: int = 2048) -> float:
    """Floating-point operations per second of a float32 matrix product."""
    import torch

    matrix = torch.ones(size, size)
    return float(2 * size**3 / best(lambda: matrix @ matrix))


def measured(lock: Path | None) -> dict[str, float]:
    """Both, by a process of its own: {"read": bytes per second, "flops": operations per second}."""
    command = [environment("llm_genai"), "-m", "benchmarks.llm_machine"]
    with alone(lock):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    print(json.dumps({"read": read_rate(2 * num_multiplied()), "flops": flop_rate()}))


if __name__ == "__main__":
    main()
