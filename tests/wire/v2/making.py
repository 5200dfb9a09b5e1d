"""Tensors, and what makes requests of them."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mindspore_serving.core import buffers
from mindspore_serving.core.graph import Method
from mindspore_serving.wire import splitting, worker_codec
from mindspore_serving.wire.v2.datatypes import BY_NAME, BY_NUMPY
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody

METHOD = Method("m", ("x",), ("y",), (), (0,))
NUMBERS = sorted(row.name for row in BY_NUMPY.values())
arrays = st.sampled_from(NUMBERS).flatmap(
    lambda name: hnp.arrays(
        BY_NAME[name].numpy, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
    )
)


def refuse_region(region):
    raise AssertionError(f"{region} was read")


def raw(array, name="x", datatype=""):
    row = BY_NAME[datatype] if datatype else BY_NUMPY[array.dtype]
    return InputTensor(name, row, array.shape, "raw", array.tobytes())


def text_bytes(texts):
    """BYTES as they are on the wire."""
    encoded = [one.encode() if isinstance(one, str) else one for one in texts]
    return b"".join(len(one).to_bytes(4, "little") + one for one in encoded)


def whole(body, method=METHOD):
    """The instances that a worker makes of all of `body`."""
    codec, chunks = splitting.wrap("v2_raw", body)
    return worker_codec(codec).decode(
        [memoryview(buffers.contiguous(chunk)) for chunk in chunks], method, "s"
    )


def in_pieces(body, size, method=METHOD):
    """The same of pieces of `size` instances."""
    codec, rows = splitting.split("v2_raw", body)
    found = []
    for start in range(0, len(rows), size):
        chunks = [buffers.contiguous(row) for row in rows[start : start + size]]
        found += worker_codec(codec).decode(chunks, method, "s")
    return found


def body_of(*tensors, is_batched=True):
    return TensorBody(tensors, is_batched=is_batched)


def same(found, array):
    """Whether instances are the rows of `array`, which differ in no bit."""
    rows = [one["x"] for one in found]
    return len(rows) == len(array) and all(
        one.dtype == row.dtype and one.shape == np.shape(row) and one.tobytes() == row.tobytes()
        for one, row in zip(rows, array, strict=True)
    )
