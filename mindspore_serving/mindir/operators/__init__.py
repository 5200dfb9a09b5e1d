"""The table of operators: name in MindIR -> the function that builds it of OpenVINO's operations.

A file holds a family.  Such a function gets the inputs by position and the attributes by name; see
`tensors` for what its annotations mean.
"""

from collections.abc import Mapping

from mindspore_serving.mindir.operators import (
    activations,
    adaptive,
    binary,
    combining,
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
    resizing,
    scattering,
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
    *(activations, adaptive, binary, combining, convolution, creation, image),
    *(indexing, matmul, normalization, numbers, order, pooling, recurrent),
    *(reductions, resizing, scattering, sequence, shape, slicing, transposed, unary),
)
OPERATORS: Mapping[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}
"""Those whose first input is a weight that they write are in WRITERS too."""
