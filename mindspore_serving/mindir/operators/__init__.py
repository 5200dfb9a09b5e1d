"""The table of operators: name in MindIR -> the function that builds it of OpenVINO's operations.

A file holds a family.  Such a function gets the inputs by position and the attributes by name; see
`tensors` for what its annotations mean.
"""

from collections.abc import Mapping

from mindspore_serving.mindir.operators import (
    activations,
    adaptive,
    algebra,
    attention,
    binary,
    combining,
    convolution,
    creation,
    decoding,
    image,
    indexing,
    losses,
    matmul,
    normalization,
    numbers,
    order,
    pooling,
    recurrent,
    reductions,
    scans,
    scattering,
    sequence,
    shape,
    slicing,
    special,
    transposed,
    unary,
    windows,
)
from mindspore_serving.mindir.operators.sequence import WRITERS
from mindspore_serving.mindir.tensors import Operator

__all__ = ["OPERATORS", "WRITERS"]

FAMILIES = (
    *(activations, adaptive, algebra, attention, binary, combining, convolution, creation),
    *(decoding, image, indexing, losses, matmul, normalization, numbers, order, pooling),
    *(recurrent, reductions, scans, scattering, sequence, shape, slicing, special, transposed),
    *(unary, windows),
)
OPERATORS: Mapping[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}
"""Those whose first input is a weight that they write are in WRITERS too."""
