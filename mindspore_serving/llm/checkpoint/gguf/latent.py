"""DeepSeek's latent attention: the matrix that widens keys and values.

llama.cpp has it in two parts for each head, keys [heads, rank, features], turned, and values
[heads, features, rank]; checkpoints have one matrix, head by head the rows of keys, then of values.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks
from mindspore_serving.llm.checkpoint.gguf.stored import floats_of
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

KEYS, VALUES = "attn_k_b", "attn_v_b"


def widening(layer: str, keys: Blocks, values: Blocks | None) -> StoredTensor:
    """The matrix, made when it is read.  Raises StartError unless both parts are of as many heads
    and as wide."""
    shape = keys.shape
    if values is None or len(shape) != 3 or values.shape[::2] != shape[:2]:
        found = values.shape if values else None
        raise StartError(
            f"{layer} has {KEYS} {list(shape)} and {VALUES} {found}, expected [heads, rank, "
            "features] and [heads, features, rank]"
        )
    rows = shape[0] * (shape[2] + values.shape[1])
    read = partial(_joined, keys, values)
    return QuantizedTensor("joined", (rows, shape[1]), keys.rows, read, is_packed=False)


def _joined(keys: Blocks, values: Blocks) -> npt.NDArray[np.float32]:
    parts = [floats_of(keys).swapaxes(1, 2), floats_of(values)]
    both: npt.NDArray[np.float32] = np.concatenate(parts, 1)
    return both.reshape(-1, keys.shape[1])
