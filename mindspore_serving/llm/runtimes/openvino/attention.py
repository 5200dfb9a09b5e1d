"""Paged attention of OpenVINO's CPU plugin: one node, 28 inputs in this order.

The operation is private to OpenVINO and its inputs change between releases, so they are described
in this file only, and a small case is compared with numpy once per process: another order gives
wrong numbers without an error.  It does not check bounds; `feed` does.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import AttentionSpec

Node: TypeAlias = Any

TYPES = "token_type_ids"  # name of the input
BLOCK_SIZE = 32  # tokens per cache block, fixed by the plugin


def paged_attention(
    qkv: tuple[Node, Node, Node], cache: tuple[Node, Node], spec: AttentionSpec, *,
    step: Mapping[str, Node], sinks: Node | None = None, value_dim: int = 0,
) -> Node:  # fmt: skip
    """Compute the attention of the new tokens, and write their keys and values to `cache`.

    The result is [T, heads * value_dim], by default that of keys.  `step` has the parameters
    past_lens, subsequence_begins, block_indices, block_indices_begins and max_context_len; also
    token_type_ids if adjacent tokens of type 1 see one another.  `sinks` are [1, heads].

    Raises StartError for attention that the operation does not support.
    """
    if spec.softcap:
        raise StartError(
            "the openvino runtime has no attention with soft-capped scores; use the torch runtime"
        )
    from openvino.op import _PagedAttentionExtension  # private: another release may lack it

    types = np.zeros(0, np.int32) if spec.is_causal else step.get(TYPES, np.zeros(0, np.int32))
    alibi = np.asarray(spec.alibi or (), np.float32)
    no_sinks = np.zeros((0, 0, 0, 0), np.float32)
    scores = no_sinks if sinks is None else opset.reshape(sinks, np.array([1, -1, 1, 1]), False)
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
        *_unused(scores, types),
    ]
    nodes = [x if hasattr(x, "get_type_name") else opset.constant(x) for x in inputs]
    node = _PagedAttentionExtension([x.output(0) for x in nodes])
    sizes = node.get_rt_info()
    sizes["num_k_heads"] = sizes["num_v_heads"] = spec.num_kv_heads
    sizes["k_head_size"], sizes["v_head_size"] = spec.head_dim, value_dim or spec.head_dim
    # It has three outputs; a reshape of the first is a node with one, of known width.
    width = spec.num_heads * (value_dim or spec.head_dim)
    return opset.reshape(node.output(0), np.array([-1, width], np.int64), False)


def _unused(sinks: Any, types: Any) -> list[Any]:
    """Return the inputs after max_context_len, each disabled except `sinks` and `types`."""
    none, nought = np.zeros(0, np.int32), np.int32(0)
    floats = np.zeros(0, np.float32)
    return [
        none,  # score_aggregation_window
        none, none, floats,  # rotated_block_indices, rotation_deltas, rotation_trig_lut
        floats, nought, nought,  # xattention: threshold, block size, stride
        sinks,
        nought, none, none, none,  # adaptive eviction
        types,
        np.zeros(0, np.uint8), none,  # qq_bias, qq_bias_begins
    ]  # fmt: skip


Floats = npt.NDArray[np.float32]

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, window=40)
LENGTHS = (45, 8)  # of two sequences
TABLES = ((3, 1), (2,))  # their blocks, out of order
CHUNKS = ((37, 1), (7, 4), (1, 3))  # new tokens of each in three steps
IMAGE = slice(9, 30)  # image tokens of the first sequence, if there are types
TOLERANCE = 1e-5


@cache
def check_paged_attention(*, has_types: bool = False) -> None:
    """Check the operation.

    Raises StartError naming openvino's version if it is missing or gives other results.
    """
    try:
        error = relative_error(has_types=has_types)
    except Exception as cause:  # the library's errors have no type of their own
        raise StartError(_message(f"is refused: {str(cause).splitlines()[0]}")) from cause
    if not error < TOLERANCE:
        raise StartError(_message(f"is off by {error:.1e} of the largest value"))


def _message(what: str) -> str:
    return (
        f"openvino {ov.__version__}: its paged attention, which is private and changes between "
        f"releases, {what}; install openvino 2026.4"
    )


def relative_error(*, has_types: bool = False) -> float:
    """Return the largest difference from numpy in three steps, relative to the largest value."""
    random = np.random.default_rng(0)
    q, k, v = (
        [random.standard_normal((length, heads * SPEC.head_dim), np.float32) for length in LENGTHS]
        for heads in (SPEC.num_heads, SPEC.num_kv_heads, SPEC.num_kv_heads)
    )
    request = _compiled(has_types=has_types).create_infer_request()
    for name in ("key_cache", "value_cache"):
        shape = (4, SPEC.num_kv_heads, BLOCK_SIZE, SPEC.head_dim)
        request.set_tensor(name, ov.Tensor(np.zeros(shape, np.float32)))
    errors, past = [], [0, 0]
    for chunks in CHUNKS:
        ends = [p + n for p, n in zip(past, chunks, strict=True)]
        new = [slice(p, end) for p, end in zip(past, ends, strict=True)]
        for name, parts in (("q", q), ("k", k), ("v", v)):
            chunk = [part[part_slice] for part, part_slice in zip(parts, new, strict=True)]
            request.set_tensor(name, ov.Tensor(np.concatenate(chunk)))
        _set_step(request, past, chunks)
        if has_types:
            types = np.zeros(sum(chunks), np.int32)
            types[IMAGE] = past[0] == 0
            request.set_tensor(TYPES, ov.Tensor(types))
        request.infer()
        output = request.get_output_tensor(0).data
        image = IMAGE if has_types and past[0] == 0 else slice(0)
        expected = np.concatenate(
            [
                attention(q[i][new[i]], k[i][: ends[i]], v[i][: ends[i]], part)
                for i, part in enumerate((image, slice(0)))
            ]
        )
        errors.append(float(np.abs(output - expected).max() / np.abs(expected).max()))
        past = ends
    return max(errors)


def attention(q: Floats, k: Floats, v: Floats, image: slice) -> Floats:
    """Compute attention of the last len(q) tokens by its definition.

    Tokens of `image` see one another.
    """
    count, length, d = len(q), len(k), SPEC.head_dim
    group = SPEC.num_heads // SPEC.num_kv_heads
    queries = q.reshape(count, SPEC.num_heads, d)
    keys, values = (x.reshape(length, SPEC.num_kv_heads, d).repeat(group, 1) for x in (k, v))
    scores = np.einsum("thd,nhd->htn", queries, keys) * SPEC.scale
    distance = np.arange(length - count, length)[:, None] - np.arange(length)
    is_hidden = (distance < 0) | (distance >= SPEC.window)
    is_hidden[image, image] = False
    scores[:, is_hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Floats = np.einsum("htn,nhd->thd", weights, values).reshape(count, -1)
    return mixed


def _compiled(*, has_types: bool) -> Any:
    parameters: dict[str, Any] = {}

    def parameter(name: str, kind: Any, *shape: int) -> Any:
        node = Parameter(kind, ov.PartialShape(list(shape)))
        node.output(0).get_tensor().set_names({name})
        parameters[name] = node
        return node

    widths = {"q": SPEC.num_heads, "k": SPEC.num_kv_heads, "v": SPEC.num_kv_heads}
    q, k, v = (parameter(x, ov.Type.f32, -1, n * SPEC.head_dim) for x, n in widths.items())
    keys, values = (
        parameter(name, ov.Type.dynamic, -1, -1, -1, -1) for name in ("key_cache", "value_cache")
    )
    for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"):
        parameter(name, ov.Type.i32, -1)
    parameter("max_context_len", ov.Type.i32)
    if has_types:
        parameter(TYPES, ov.Type.i32, -1)
    out = paged_attention((q, k, v), (keys, values), SPEC, step=parameters)
    model = ov.Model([opset.result(out)], list(parameters.values()), "paged_attention")
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return ov.Core().compile_model(model, "CPU", {**properties, "ENABLE_CPU_PINNING": False})


def _set_step(request: Any, past: list[int], chunks: tuple[int, int]) -> None:
    first = len(TABLES[0])
    values = {
        "past_lens": past,
        "subsequence_begins": [0, chunks[0], sum(chunks)],
        "block_indices": [*TABLES[0], *TABLES[1]],
        "block_indices_begins": [0, first, first + len(TABLES[1])],
        "max_context_len": max(p + n for p, n in zip(past, chunks, strict=True)),
    }
    for name, value in values.items():
        request.set_tensor(name, ov.Tensor(np.array(value, np.int32)))
