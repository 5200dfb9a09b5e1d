"""Speed of the native runtime's products, beside the machine's memory.

    python -m benchmarks.native_products [--formats Q4_K,Q8_0] [--tokens 1,8] [--busy 1]

Prints the gigabytes of weights per second of each block format with one thread and with a thread
per core: the best pass, the median and the 99th percentile; and the share of what the same
threads read, alone, in passes that take turns with those.  Matrices are 5632 x 2048 of random
blocks, 256 MB together, so no cache holds them.  `--busy` starts processes that keep cores busy.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.llm_machine import features
from mindspore_serving.llm.runtimes.native.kernels.compiler import compiler, instruction_set
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, U64, Emitter
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    FORMATS,
    Activations,
    BlockMatrix,
    KernelFormat,
)
from mindspore_serving.llm.runtimes.native.kernels.products import (
    ProductMemory,
    num_chunks,
    product_address,
    product_arguments,
    quantise_address,
    quantise_arguments,
)
from mindspore_serving.llm.runtimes.native.threads import (
    KernelPlan,
    KernelThreads,
    physical_cores,
)

ROWS, COLUMNS = 5632, 2048
BYTES = 2**28  # of all matrices
LINE = 64  # bytes of a cache line
READ = 2**17  # bytes of a chunk that is only read
PASSES = 60
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices of one format that are multiplied one after the other."""

    matrices: list[BlockMatrix]
    activations: npt.NDArray[Any]  # what kernels write to or read from
    out: npt.NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        return sum(matrix.data.nbytes for matrix in self.matrices)

    def products(self, tokens: int) -> KernelPlan:
        kernel = product_address(self.matrices[0].format)
        memory = ProductMemory(
            self.activations.ctypes.data, self.out.ctypes.data, self.out.strides[0], tokens
        )
        return KernelPlan(
            (kernel, num_chunks(matrix), product_arguments(matrix, memory))
            for matrix in self.matrices
        )

    def reads(self) -> KernelPlan:
        kernel = compiler().address("benchmark_read", read_body)
        return KernelPlan(
            (
                kernel,
                matrix.data.nbytes // READ,
                np.array([matrix.data.ctypes.data, self.out.ctypes.data], np.int64),
            )
            for matrix in self.matrices
        )


def read_body(e: Emitter, arguments: Any, chunk: Any) -> None:
    """Write the code that adds the bytes of a chunk, so that it has to read them."""
    data, out = (e.load(arguments, I64, 8 * at) for at in range(2))
    start = e.b.add(data, e.b.mul(chunk, e.c(READ)))
    sums = [e.variable(e.every(U64, 0)) for _ in range(4)]
    with e.loop(e.c(0), e.c(READ), 256) as offset:
        for part, total in enumerate(sums):
            values = e.load(e.b.add(start, offset), U64, 64 * part)
            e.b.store(e.b.add(e.b.load(total), values), total)
    first, second, third, fourth = (e.b.load(total) for total in sums)
    every = e.b.add(e.b.add(first, second), e.b.add(third, fourth))
    e.store(every, e.b.add(out, e.b.mul(chunk, e.c(64))))


def weights_of(format_: KernelFormat, tokens: int) -> Weights:
    random = np.random.default_rng(0)
    row_bytes, group = format_.row_bytes(COLUMNS), format_.scale_group
    shape = (ROWS, COLUMNS // group if group > 0 else 1)
    matrices = []
    for _ in range(max(1, BYTES // (ROWS * row_bytes))):
        data = random.integers(0, 128, (ROWS, row_bytes), np.uint8)
        scales = np.ones(shape, np.float16) if group else None
        zeros = np.ones(shape, np.uint8) if format_.has_zeros else None
        matrices.append(BlockMatrix(format_, ROWS, COLUMNS, data, scales, zeros))
    x = random.standard_normal((tokens, COLUMNS)).astype(np.float32)
    out = np.zeros((max(tokens, 16), ROWS), np.float32)
    kind = format_.activations
    if kind == Activations.FLOAT:
        return Weights(matrices, x, out)
    rounded = _aligned((tokens, kind.row_bytes(COLUMNS)))
    arguments = quantise_arguments(x.ctypes.data, x.strides[0], rounded.ctypes.data, COLUMNS, kind)
    threads = KernelThreads(1)
    threads.run(KernelPlan([(quantise_address(kind), tokens, arguments)]))
    return Weights(matrices, rounded, out)


def _aligned(shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return zeros that begin at a cache line, as those of the runtime do."""
    memory = np.zeros(shape[0] * shape[1] + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + shape[0] * shape[1]].reshape(shape)


def measure(weights: Weights, tokens: int, num_threads: int) -> str:
    """Return rates of passes that multiply, and their share of those that read."""
    threads = KernelThreads(num_threads)
    plans = weights.products(tokens), weights.reads()
    seconds = np.zeros((PASSES, 2))
    for row in seconds:
        for column, plan in enumerate(plans):
            began = time.perf_counter()
            threads.run(plan)
            row[column] = time.perf_counter() - began
    threads.close()
    best, median, slowest = (
        weights.num_bytes / 1e9 / np.quantile(seconds, at, axis=0) for at in (0, 0.5, 0.99)
    )
    return (
        f"{best[0]:5.1f} {median[0]:6.1f} {slowest[0]:6.1f}   {best[1]:5.1f} {median[1]:6.1f} "
        f"  {best[0] / best[1]:4.0%}  {median[0] / median[1]:4.0%}"
    )


def busy(count: int) -> Iterator[subprocess.Popen[bytes]]:
    for _ in range(count):
        yield subprocess.Popen([sys.executable, "-c", BUSY])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="Q4_K,Q6_K,Q8_0,Q4_0,Q5_0,F16,BF16,F32,INT8,INT4_128")
    parser.add_argument("--tokens", default="1,4")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy")
    options = parser.parse_args()
    print(f"instructions: {instruction_set().value}; processor: {features()}")
    print("                       products             reads        share")
    print("format  tokens threads  best median slowest   best median   best  median")
    processes = list(busy(options.busy))
    try:
        for name in options.formats.split(","):
            for tokens in map(int, options.tokens.split(",")):
                weights = weights_of(FORMATS[name], tokens)
                for num_threads in sorted({1, len(physical_cores())}):
                    line = measure(weights, tokens, num_threads)
                    print(f"{name:9} {tokens:4} {num_threads:7} {line}", flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
