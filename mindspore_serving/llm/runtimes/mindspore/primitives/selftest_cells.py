"""Graphs of one primitive each, for the self-test.

Ascend's kernels find the lengths of sequences among the arguments of the outermost `construct` by
name, so that attention and the rotary embedding have cells with these names.
"""

from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import (
    BLOCK,
    HEADS,
    KV_HEADS,
    Array,
    PrimitiveCase,
    rounded,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make

Tensor: TypeAlias = Any  # a mindspore.Tensor
STEP = ("slot_mapping", "attn_mask", "batch_valid_length", "q_seq_lens", "block_tables")


class PrimitiveGraph(mindspore.nn.Cell):  # type: ignore[misc]
    """A primitive and its arguments."""

    def __init__(self, primitive: Any) -> None:
        super().__init__()
        self.primitive = primitive

    def construct(self, *arguments: Tensor) -> Any:
        return self.primitive(*arguments)


class RopeGraph(PrimitiveGraph):
    """The rotary embedding of new tokens."""

    def construct(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, batch_valid_length: Tensor
    ) -> Any:
        return self.primitive(q, k, cos, sin, batch_valid_length)


class MaskedGraph(PrimitiveGraph):
    """Attention and its mask."""

    def __init__(
        self, primitive: Any, filling: str, heads: tuple[int, int], *, is_paged: bool
    ) -> None:
        super().__init__(primitive)
        self.mask = make(
            "attention_mask", filling, head_num=heads[0], kv_head_num=heads[1], block_size=BLOCK,
            is_paged=is_paged,
        )  # fmt: skip


class FlashGraph(MaskedGraph):
    """Attention of packed sequences."""

    def construct(
        self, q: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor, attn_mask: Tensor,
        batch_valid_length: Tensor, q_seq_lens: Tensor, block_tables: Tensor,
    ) -> Any:  # fmt: skip
        mask = self.mask(attn_mask, slot_mapping, batch_valid_length, q_seq_lens, block_tables)
        return self.primitive(q, k, v, mask, batch_valid_length)


class PagedAttentionGraph(MaskedGraph):
    """Attention to a cache."""

    def construct(
        self, q: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
        attn_mask: Tensor, batch_valid_length: Tensor, q_seq_lens: Tensor, block_tables: Tensor,
    ) -> Any:  # fmt: skip
        mask = self.mask(attn_mask, slot_mapping, batch_valid_length, q_seq_lens, block_tables)
        return self.primitive(
            q, key_cache, value_cache, block_tables, batch_valid_length, mask, q_seq_lens
        )


class LatentGraph(MaskedGraph):
    """Attention to a latent cache."""

    def construct(
        self, q: Tensor, q_rope: Tensor, kv_cache: Tensor, rope_cache: Tensor,
        slot_mapping: Tensor, attn_mask: Tensor, batch_valid_length: Tensor, q_seq_lens: Tensor,
        block_tables: Tensor,
    ) -> Any:  # fmt: skip
        mask = self.mask(attn_mask, slot_mapping, batch_valid_length, q_seq_lens, block_tables)
        return self.primitive(
            q, q_rope, kv_cache, rope_cache, block_tables, batch_valid_length, mask, q_seq_lens
        )


def run_case(case: PrimitiveCase, filling: str, dtype: str) -> tuple[list[Array], list[Array]]:
    """Run the primitive in a graph; return its results and those of its golden."""
    model_dtype = getattr(mindspore, dtype)
    phase = "prefill" if case.name == "flash_attention" else "increment"
    tensors = {
        name: None if value is None else _tensor(case, name, value, model_dtype, filling)
        for name, value in case.arguments.items()
    }
    step = {name: _tensor(case, name, value, model_dtype, filling) for name, value in
            case.step.items()}  # fmt: skip
    graph, inputs = _graph(case, filling, tensors, step)
    graph.phase = phase
    result = graph.compile_and_run(*inputs)
    expected = _golden(case, dtype)
    if case.written:
        # Composed cells write the tokens to be skipped to the last block, which servers leave free.
        blocks = slice(None, -1 if filling == "composed" else None)
        got = [_array(tensors[name])[blocks] for name in case.written]
        return got, [array[blocks] for array in expected]
    outputs = result if isinstance(result, tuple | list) else (result,)
    return [_array(each) for each in outputs], expected


def _graph(
    case: PrimitiveCase, filling: str, tensors: dict[str, Tensor], step: dict[str, Tensor]
) -> tuple[Any, list[Tensor]]:
    """Return the graph of a case, and its inputs."""
    primitive = make(case.name, filling, **case.options)
    arguments = list(tensors.values())
    if case.name == "rope":
        return RopeGraph(primitive), [*arguments, step["batch_valid_length"]]
    if not case.step:
        return PrimitiveGraph(primitive), arguments
    inputs = [*arguments, *(step[name] for name in STEP)]
    if case.name == "mla":
        heads = (case.options["head_num"], 1)
        return LatentGraph(primitive, filling, heads, is_paged=True), inputs
    is_paged = case.name == "paged_attention"
    kind = PagedAttentionGraph if is_paged else FlashGraph
    return kind(primitive, filling, (HEADS, KV_HEADS), is_paged=is_paged), inputs


def _tensor(case: PrimitiveCase, name: str, value: Array, dtype: Any, filling: str) -> Tensor:
    if name == "weight" and case.options.get("bits") == 4 and filling == "ascend":
        return mindspore.Tensor(value, mindspore.qint4x2)
    if value.dtype != np.float32 or name in case.wide:
        return mindspore.Tensor(value)
    return mindspore.Tensor(value, dtype)


def _array(tensor: Tensor) -> Array:
    if tensor.dtype in (mindspore.bfloat16, mindspore.float16):
        tensor = tensor.astype(mindspore.float32)
    array: Array = tensor.asnumpy()
    return array


def _golden(case: PrimitiveCase, dtype: str) -> list[Array]:
    """Return the golden's results from the rounded arguments, in float32."""

    def prepare(values: Any) -> dict[str, Any]:
        return {
            name: rounded(value, dtype) if name not in case.wide else value
            for name, value in values.items()
        }

    arguments, step = prepare(case.arguments), prepare(case.step)
    golden = PRIMITIVES[case.name].golden
    options = dict(case.options)
    if "dtype" in options:
        options["dtype"] = "float32"
    extra: list[Array] = []
    if case.name == "rope":
        extra = [step["batch_valid_length"]]
    elif case.name == "flash_attention":
        extra = [step["attn_mask"], step["batch_valid_length"]]
    elif case.step:
        names = ("block_tables", "batch_valid_length", "attn_mask", "q_seq_lens")
        extra = [step[name] for name in names]
    result = golden(*arguments.values(), *extra, **options)
    if case.written:
        return [arguments[name] for name in case.written]
    return list(result) if isinstance(result, tuple) else [result]
