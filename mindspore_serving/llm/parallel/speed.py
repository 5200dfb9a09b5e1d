"""Speed of a machine at reading weights, by which layers are divided over machines."""

import time

import numpy as np

_ROWS, _WIDTH = 4096, 4096  # 64 MiB: more than a cache of the processor
_SECONDS = 0.2


def measure_speed() -> float:
    """Return the bytes of weights a second of products of a matrix and a vector in float32.

    That is what limits decoding.  numpy's library uses as many threads as there are cores.
    """
    matrix = np.ones((_ROWS, _WIDTH), np.float32)
    vector = np.ones(_WIDTH, np.float32)
    _ = matrix @ vector  # touches the memory
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _SECONDS:
        _ = matrix @ vector
        count += 1
    return count * matrix.nbytes / elapsed
