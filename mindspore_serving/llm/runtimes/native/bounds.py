"""Bounds of operations: how many features of each tensor a row of the plan reads or writes.

Compiled code checks nothing, so a plan is made only of rows that stay within their tensors.
"""

from collections.abc import Callable, Mapping

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.codes import Column, OpCode, Reduce

Features = dict[Column, int]
_OUT, _A, _B, _WIDTH = Column.OUT, Column.A, Column.B, Column.WIDTH
_P0, _P1, _P2, _P3, _P4, _P5 = (Column(Column.P0 + i) for i in range(6))


def _unary(c: Features) -> Features:
    return {_OUT: c[_WIDTH], _A: c[_WIDTH]}


def _binary(c: Features) -> Features:
    return {**_unary(c), _B: c[_WIDTH]}


def _rms_norm(c: Features) -> Features:
    width = c[_P0] * c[_WIDTH]
    return {_OUT: width, _A: width, _B: (c[_P0] - 1) * c[_P1] + c[_WIDTH]}


def _rope(c: Features) -> Features:
    width = c[_P0] * max(c[_P1], 2 * c[_WIDTH])
    return {_OUT: width, _A: width, _B: 2 * c[_WIDTH]}


def _copy_heads(c: Features) -> Features:
    last = c[_P0] - 1
    return {_OUT: last * c[_P2] + c[_WIDTH] + c[_P3], _A: last * c[_P1] + c[_WIDTH]}


def _reduce(c: Features) -> Features:
    return {_OUT: 1, _A: c[_WIDTH]} if c[_P0] == Reduce.MEAN else _binary(c)


def _route(c: Features) -> Features:
    count = max(c[_WIDTH], c[_P4])
    scratch = 2 * count + max(count, c[_P2])
    return {_OUT: 2 * c[_P4], _A: count, _B: count, _P1: count, _P5: scratch}


def _state(c: Features) -> Features:
    width, heads, key_dim = c[_WIDTH], c[_P1], c[_P2]
    if not c[_P0]:
        raise StartError("a layer's state has no tokens, or no heads of keys")
    if not heads:
        return {**_unary(c), _B: c[_P0] * width, _P2: width}
    inputs = 2 * c[_P0] * key_dim + width + heads * (1 + c[_P3])
    return {_OUT: width, _A: inputs, _B: 3 * heads, _P5: 2 * key_dim}


_FEATURES: dict[OpCode, Callable[[Features], Features]] = {
    OpCode.RMS_NORM: _rms_norm,
    OpCode.LAYER_NORM: lambda c: {**_rms_norm(c), _P2: c[_WIDTH]},
    OpCode.ROPE_TABLES: lambda c: {
        _OUT: 2 * c[_WIDTH],
        _B: c[_WIDTH],
        _P0: c[_WIDTH],
        _P1: c[_WIDTH],
    },
    OpCode.ROPE: _rope,
    OpCode.UNARY: _unary,
    OpCode.SCALING: _unary,
    OpCode.GATHER: _unary,
    OpCode.BINARY: _binary,
    OpCode.BROADCAST: lambda c: {**_unary(c), _B: 1},
    OpCode.COPY_HEADS: _copy_heads,
    OpCode.QUERY_SCALE: lambda c: {_OUT: 1},
    OpCode.REDUCE: _reduce,
    OpCode.ROUTE: _route,
    OpCode.EXPERT_PRODUCT: lambda c: {_OUT: c[_P4] * c[_WIDTH], _A: 1, _B: 1},
    OpCode.EXPERT_ORDER: lambda c: {_OUT: 1, _A: c[_P4], _P1: c[_P4], _P5: 2 * c[_WIDTH]},
    OpCode.EXPERT_GATHER: lambda c: {**_unary(c), _B: c[_P4], _P1: c[_P4]},
    OpCode.EXPERT_SUM: lambda c: {**_unary(c), _B: c[_P4], _P1: c[_P4]},
    OpCode.EXPERT_BIAS: lambda c: {**_unary(c), _B: 1, _P1: c[_WIDTH]},
    OpCode.ADAPT: lambda c: {_OUT: c[_WIDTH], _A: c[_P1]},
    OpCode.STATE: _state,
}
_OPTIONAL = {
    OpCode.RMS_NORM: {_B},
    OpCode.LAYER_NORM: {_B, _P2},
    OpCode.ROPE_TABLES: {_P0, _P1},
    OpCode.ROUTE: {_B, _P1},
    OpCode.EXPERT_GATHER: {_P1},
    OpCode.EXPERT_SUM: {_P1},
    OpCode.STATE: {_P2},
}


def check_features(columns: Features, widths: Mapping[Column, int]) -> None:
    """Check the row `columns`, whose tensors have `widths` features.

    Raises StartError for a negative number, a tensor that is missing or has no meaning, and a row
    that reads or writes beyond a tensor.  The inputs of products, and attention, are checked where
    matrices and layers are known.
    """
    code = OpCode(columns[Column.CODE])
    if any(number < 0 for number in columns.values()):
        raise StartError(f"an operation {code.name} has a negative number: {columns}")
    if code not in _FEATURES:
        return
    needed = _FEATURES[code]({column: columns.get(column, 0) for column in Column})
    other = (needed.keys() - _OPTIONAL.get(code, set()) - widths.keys()) | (
        widths.keys() - needed.keys()
    )
    if other:
        raise StartError(f"an operation {code.name} lacks {sorted(other)}, or has them in vain")
    for column, width in widths.items():
        if needed[column] > width:
            raise StartError(
                f"{column.name} of an operation {code.name} has {width} features, expected at "
                f"least {needed[column]}"
            )
