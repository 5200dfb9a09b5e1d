"""The paged attention of OpenVINO's CPU plugin: one node, 28 inputs in this order.

The operation is private to OpenVINO and its inputs change between releases, so they are described
in this file only.  It does not check bounds; `feed` does.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from openvino import opset13 as opset

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import AttentionSpec

Node: TypeAlias = Any

BLOCK_SIZE = 32  # tokens per cache block, fixed by the plugin


def paged_attention(
    qkv: tuple[Node, Node, Node], cache: tuple[Node, Node], spec: AttentionSpec, *,
    step: Mapping[str, Node],
) -> Node:  # fmt: skip
    """[T, heads * head_dim] of the new tokens; writes their keys and values to `cache`.

    `step` has the parameters past_lens, subsequence_begins, block_indices, block_indices_begins
    and max_context_len.  Raises StartError for what the operation cannot compute.
    """
    if spec.softcap:
        raise StartError(
            "the openvino runtime has no attention with soft-capped scores; use the torch runtime"
        )
    from openvino.op import (
        _PagedAttentionExtension,
    )  # private: it may be missing in another release

    alibi = np.asarray(spec.alibi or (), np.float32)
    inputs = [
        *qkv,
        *cache,
        step["past_lens"],
        step["subsequence_begins"],
        step["block_indices"],
        step["block_indices_begins"],
        np.float32(spec.scale),
        np.int32(spec.window),
        alibi,
        step["max_context_len"],
        *_unused(),
    ]
    nodes = [x if hasattr(x, "get_type_name") else opset.constant(x) for x in inputs]
    node = _PagedAttentionExtension([x.output(0) for x in nodes])
    sizes = node.get_rt_info()
    sizes["num_k_heads"] = sizes["num_v_heads"] = spec.num_kv_heads
    sizes["k_head_size"] = sizes["v_head_size"] = spec.head_dim
    # It has three outputs; a reshape of the first is a node with one, of known width.
    width = spec.num_heads * spec.head_dim
    return opset.reshape(node.output(0), np.array([-1, width], np.int64), False)


def _unused() -> list[Any]:
    """The inputs after max_context_len, each switched off."""
    none, nought = np.zeros(0, np.int32), np.int32(0)
    floats = np.zeros(0, np.float32)
    return [
        none,  # score_aggregation_window
        none, none, floats,  # rotated_block_indices, rotation_deltas, rotation_trig_lut
        floats, nought, nought,  # xattention: threshold, block size, stride
        np.zeros((0, 0, 0, 0), np.float32),  # sinks
        nought, none, none, none,  # adaptive eviction
        none,  # token_type_ids
        np.zeros(0, np.uint8), none,  # qq_bias, qq_bias_begins
    ]  # fmt: skip
