"""The table of operators: name in MindIR -> the function that builds it of OpenVINO's operations.

A file holds a family.  Such a function gets the inputs by position and the attributes by name; see
`tensors` for what its annotations mean.
"""

from collections.abc import Mapping

from mindspore_serving.mindir.operators import (
    algebra,
    attention,
    binary,
    convolution,
    creation,
    image,
    indexing,
    inplace,
    normalization,
    numbers,
    order,
    pooling,
    recurrent,
    reductions,
    resizing,
    shape,
    special,
    unary,
)
from mindspore_serving.mindir.tensors import Operator

__all__ = ["MOVERS", "OPERATORS", "REPEATING", "VIEWS", "WRITERS"]

FAMILIES = (
    *(algebra, attention, binary, convolution, creation, image, indexing, inplace, normalization),
    *(numbers, order, pooling, recurrent, reductions, resizing, shape, special, unary),
)
OPERATORS: Mapping[str, Operator] = {
    name: operator for family in FAMILIES for name, operator in family.OPERATORS.items()
}
WRITERS = frozenset(inplace.WRITERS)
"""Those whose result is what their first input holds from then on."""
MOVERS = frozenset(numbers.MOVERS)
"""Those that read no tensor."""
VIEWS = frozenset(name for name in OPERATORS if name.endswith("View")) | {"ViewAs"}
"""Those whose result is a part of their first input, not a copy."""
REPEATING = frozenset({"BroadcastToView"})
"""Those of VIEWS in which an element may stand several times."""
