"""What the machine can do at most: bytes read and multiplications per second, on all cores.

`python -m benchmarks.llm_machine` prints them as JSON, with what the processor has for them.  The
array that is read has the size of the model's matrices in bfloat16, so that caches help it as much
as them.  The matrix products are torch's, so this runs where transformers does.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.llm_contenders import environment
from benchmarks.llm_model import num_multiplied
from benchmarks.llm_process import alone
from benchmarks.processes import ROOT

ROUNDS = 10
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_")


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


def flop_rates(size: int = 2048) -> dict[str, float]:
    """Operations per second of a matrix product in float32, bfloat16 and int8."""
    import torch

    wide = torch.ones(size, size)
    half, small = wide.bfloat16(), wide.to(torch.int8)
    products: dict[str, Callable[[], object]] = {
        "flops": lambda: wide @ wide,
        "flops_bf16": lambda: half @ half,
        "ops_int8": lambda: torch._int_mm(small, small),
    }
    return {name: 2 * size**3 / best(run) for name, run in products.items()}


def features() -> str:
    """Of the processor, those that multiply matrices."""
    with open("/proc/cpuinfo") as cpuinfo:
        flags = next(line for line in cpuinfo if line.startswith("flags")).split()
    return " ".join(flag for flag in flags if flag.startswith(FEATURES))


def measured(lock: Path | None) -> dict[str, Any]:
    """By a process of its own: {"read": bytes per second, "flops": float32 operations per second,
    "flops_bf16", "ops_int8", "features"}."""
    command = [environment("llm_genai"), "-m", "benchmarks.llm_machine"]
    with alone(lock):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    rates = {"read": read_rate(2 * num_multiplied()), **flop_rates()}
    print(json.dumps({**rates, "features": features()}))


if __name__ == "__main__":
    main()
