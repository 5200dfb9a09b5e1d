"""Attention as one operator."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import LAYOUT
from mindspore_serving.mindir.tensors import (
    Float,
    Int,
    Operator,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    ints_of,
    like,
    reshape,
    size_of,
    tensor,
)
from mindspore_serving.mindir.values import Lost, Value

# Axes of (batch, heads, tokens, size), by the name of the layout.
_TO_HEADS_FIRST = {
    "bnsd": (0, 1, 2, 3),
    "bsnd": (0, 2, 1, 3),
    "bsh": (0, 2, 1, 3),
    "sbh": (1, 2, 0, 3),
}
_FROM_HEADS_FIRST = {
    "bnsd": (0, 1, 2, 3),
    "bsnd": (0, 2, 1, 3),
    "bsh": (0, 2, 1, 3),
    "sbh": (2, 0, 1, 3),
}
_UNLIMITED = 2147483647
_EXPLICIT, _ALL, _CAUSAL_LEFT, _CAUSAL_RIGHT = range(4)  # the enumeration of sparse_mode


def _flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real_shift: Value = None,
    drop_mask: Value = None,
    padding_mask: Value = None,
    attn_mask: Value = None,
    prefix: Value = None,
    actual_seq_qlen: Value = None,
    actual_seq_kvlen: Value = None,
    head_num: Int = 1,
    keep_prob: Float = 1.0,
    scale_value: Float = 1.0,
    pre_tokens: Int = _UNLIMITED,
    next_tokens: Int = _UNLIMITED,
    inner_precise: Int = 0,
    input_layout: Value = 0,
    sparse_mode: Int = 0,
) -> Any:
    """Compute attention; returns three results that only training needs, and the output.

    A non-zero element of `attn_mask` hides a key from a query.
    """
    layout = LAYOUT.name("input_layout", input_layout, *_TO_HEADS_FIRST)
    refused = {
        "real_shift": real_shift, "drop_mask": drop_mask, "padding_mask": padding_mask,
        "prefix": prefix, "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen,
    }  # fmt: skip
    names = [name for name, argument in refused.items() if argument is not None]
    if sparse_mode not in (_EXPLICIT, _ALL, _CAUSAL_LEFT, _CAUSAL_RIGHT):
        names.append(f"sparse_mode {sparse_mode}")
    is_banded = min(pre_tokens, next_tokens) < _UNLIMITED and attn_mask is not None
    if is_banded and sparse_mode == _EXPLICIT:
        names.append("pre_tokens and next_tokens")
    if keep_prob != 1.0:
        names.append("keep_prob")
    if names:
        raise UnsupportedTensor(f"an attention with {', '.join(names)}")
    size = _head_size(query, head_num, layout)
    query, key, value = (_heads_first(x, size, layout) for x in (query, key, value))
    key, value = (_repeated(x, head_num) for x in (key, value))
    bias = _bias(query, key, attn_mask, sparse_mode)
    scale = like(scale_value, query)
    attended = (
        op.scaled_dot_product_attention(query, key, value, scale=scale)
        if bias is None
        else op.scaled_dot_product_attention(query, key, value, bias, scale)
    )
    output = op.transpose(attended, ints_of(_FROM_HEADS_FIRST[layout])).output(0)
    if layout in ("bsh", "sbh"):
        output = op.reshape(output, ints_of([0, 0, head_num * size]), True).output(0)
    return (*(Lost(f"softmax_{name} of the attention") for name in ("max", "sum", "out")), output)


def _head_size(query: Any, head_num: int, layout: str) -> int:
    last = dims(query)[-1]
    if last < 0:
        raise UnsupportedTensor("heads of open size")
    return last if layout in ("bnsd", "bsnd") else last // head_num


def _heads_first(x: Any, size: int, layout: str) -> Any:
    """Return `x` as (batch, heads, tokens, size)."""
    if layout in ("bsh", "sbh"):
        x = op.reshape(x, ints_of([0, 0, -1, size]), True).output(0)
    return op.transpose(x, ints_of(_TO_HEADS_FIRST[layout])).output(0)


def _repeated(x: Any, head_num: int) -> Any:
    """Repeat each head of keys or values for the heads of queries that share it."""
    heads = dims(x)[1]
    if heads < 1 or head_num % heads:
        raise UnsupportedTensor(f"{head_num} heads with {heads} of keys")
    order = [head * heads // head_num for head in range(head_num)]
    return x if heads == head_num else op.gather(x, ints_of(order), op.constant(1)).output(0)


def _bias(query: Any, key: Any, mask: Value, sparse_mode: int) -> Any:
    """Return what is added to the scores (the lowest number for hidden keys), or None."""
    if sparse_mode in (_CAUSAL_LEFT, _CAUSAL_RIGHT):
        num_queries, num_keys = size_of(query, 2), size_of(key, 2)
        step = op.constant(1)
        rows = op.range(op.constant(0), reshape(num_queries, ()), step, "i64")
        columns = op.range(op.constant(0), reshape(num_keys, ()), step, "i64")
        shift = op.subtract(num_keys, num_queries) if sparse_mode == _CAUSAL_RIGHT else ints_of([0])
        last = op.add(op.unsqueeze(rows, ints_of([1])), shift)
        is_hidden = op.greater(op.unsqueeze(columns, ints_of([0])), last).output(0)
    elif mask is None:
        return None
    else:
        is_hidden = cast(tensor(mask), ov.Type.boolean)
    lowest = -65504.0 if query.get_element_type() == ov.Type.f16 else -3.0e38
    return op.select(is_hidden, like(lowest, query), like(0, query)).output(0)


OPERATORS: dict[str, Operator] = {"FlashAttentionScore": _flash_attention}
