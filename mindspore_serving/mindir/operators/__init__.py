"""The table of operators: name in MindIR -> the function that builds it of OpenVINO's operations.

A file holds a family.  Such a function gets the inputs by position and the attributes by name; see
`tensors` for what its annotations mean.
"""

from collections.abc import Mapping

from mindspore_serving.mindir.operators import (
    binary,
    convolution,
    creation,
    image,
    indexing,
    matmul,
    normalization,
    numbers,
    order,
    pooling,
    recurrent,
    reductions,
    sequence,
    shape,
    slicing,
    transposed,
    unary,
)
from mindspore_serving.mindir.operators.sequence import WRITERS
from mindspore_serving.mindir.tensors import Operator

__all__ = ["OPERATORS", "WRITERS"]

FAMILIES = (
    *(binary, convolution, creation, image, indexing, matmul, normalization, numbers),
    *(order, pooling, recurrent, reductions, sequence, shape, slicing, transposed, unary),
)
OPERATORS: Mapping[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}
"""Names that start a write to a weight are in WRITERS too."""
