"""Quantised products, routing to experts and latent attention: goldens and composed cells."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore_serving.llm.runtimes.mindir.library import mindspore  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make  # noqa: E402

RANDOM = np.random.default_rng(5)


def draw(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def drawn(low, high, *shape, dtype=np.int8):
    return RANDOM.integers(low, high, shape).astype(dtype)


X, WIDE = draw(3, 64), draw(3, 16)
CHOSEN = np.array([[2, 0], [5, 2], [2, 3]], np.int32)
COUNTS = np.array([1, 0, 3, 1, 0, 1])
GROUPS = {"group_num": 4, "group_topk": 2, "n": 2, "k": 3}
BITS = np.array([0.5, 3e-3, 1.7, 2.0, 1e-5], np.float32)
INT8_X, INT8_W = drawn(-127, 128, 3, 8), drawn(-127, 128, 5, 8)
ROWS = [
    ("weight_quant_matmul", {"bits": 8},
     (X, drawn(-128, 128, 64, 6), draw(6), draw(6))),
    ("weight_quant_matmul", {"bits": 8, "group_size": 32},
     (X, drawn(-128, 128, 64, 6), draw(2, 6), draw(2, 6))),
    ("weight_quant_matmul", {"bits": 4, "group_size": 32},
     (X, drawn(-128, 128, 64, 3), draw(2, 6), draw(2, 6))),
    ("dynamic_quant", {}, (WIDE * np.array([[1], [0], [9]], np.float32), draw(16))),
    ("quant_matmul", {"dtype": "float32"},
     (INT8_X, INT8_W, BITS, drawn(-9, 9, 5, dtype=np.int32), draw(3))),
    ("quant_matmul", {"dtype": "float32"},
     (INT8_X, INT8_W, BITS.view(np.int32).astype(np.int64), drawn(-9, 9, 5, dtype=np.int32),
      np.ones(3, np.float32))),
    ("quantise", {}, (WIDE * 50, np.array([0.3], np.float32), np.array([4], np.int8))),
    ("quantise", {}, (WIDE * 50, np.array([3.0], np.float32), np.array([4.5], np.float32))),
    ("moe_gating_topk_softmax", {"k": 3}, (WIDE,)),
    ("moe_init_routing", {"num_experts": 6}, (WIDE, CHOSEN)),
    ("grouped_matmul", {}, (draw(6, 4), draw(6, 4, 5), COUNTS)),
    ("moe_unpermute", {}, (draw(6, 4), np.array([3, 0, 1, 5, 2, 4], np.int32), draw(3, 2))),
    ("fused_add_topk_div", GROUPS, (WIDE, draw(16))),
]  # fmt: skip
# Arguments whose first size is not that of the step.
FIXED = {
    "weight_quant_matmul": (1, 2, 3), "dynamic_quant": (1,), "quant_matmul": (1, 2, 3),
    "quantise": (1, 2), "grouped_matmul": (1, 2), "fused_add_topk_div": (1,),
}  # fmt: skip


class ExpertsCall(mindspore.nn.Cell):
    """A graph of one primitive."""

    def __init__(self, name, options):
        super().__init__()
        self.primitive = make(name, "composed", **options)

    def construct(self, *arguments):
        return self.primitive(*arguments)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}{[*row[1].values()]}")
def test_a_composed_cell_of_experts_or_integers_equals_its_golden(row):
    name, options, arrays = row
    cell = ExpertsCall(name, options)
    tensors = [mindspore.Tensor(x) for x in arrays]
    cell.set_inputs(*[
        x if index in FIXED.get(name, ())
        else mindspore.Tensor(shape=[None, *x.shape[1:]], dtype=x.dtype)
        for index, x in enumerate(tensors)
    ])  # fmt: skip
    got, want = cell.compile_and_run(*tensors), PRIMITIVES[name].golden(*arrays, **options)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for one, other in pairs:
        np.testing.assert_allclose(one.asnumpy(), other, rtol=1e-5, atol=1e-5)
        assert one.asnumpy().dtype == other.dtype


def test_four_bits_are_two_to_a_byte_with_the_low_half_first():
    weight = np.array([[0x8F]], np.uint8).view(np.int8)  # low 0xF = -1, high 0x8 = -8
    golden = PRIMITIVES["weight_quant_matmul"].golden
    scale, offset = np.array([2.0, 0.5], np.float32), np.array([1.0, 8.0], np.float32)
    x = np.array([[3.0]], np.float32)
    assert golden(x, weight, scale, None, bits=4).tolist() == [[-6, -12]]
    assert golden(x, weight, scale, offset, bits=4).tolist() == [[0, 0]]


def test_both_formulas_of_quantisation_by_hand():
    golden = PRIMITIVES["quantise"].golden
    x = np.array([[1.0, -3.0, 500.0]], np.float32)
    scale = np.array([2.0], np.float32)
    assert golden(x, scale, np.array([3], np.int8)).tolist() == [[3, 1, 127]]
    assert golden(x, scale, np.array([3.0], np.float32)).tolist() == [[5, -3, 127]]


def test_a_block_of_experts_equals_a_loop_over_tokens():
    golden = {name: row.golden for name, row in PRIMITIVES.items()}
    x, weight = draw(4, 8), draw(6, 8, 5)
    shares, chosen, _ = golden["moe_gating_topk_softmax"](draw(4, 6), k=2)
    rows, places, counts = golden["moe_init_routing"](x, chosen, num_experts=6)
    out = golden["moe_unpermute"](golden["grouped_matmul"](rows, weight, counts), places, shares)
    for token in range(4):
        want = sum(
            s * (x[token] @ weight[e]) for s, e in zip(shares[token], chosen[token], strict=True)
        )
        np.testing.assert_allclose(out[token], want, rtol=1e-5, atol=1e-5)


def test_routing_in_groups_equals_a_loop_over_groups_and_experts():
    scores, bias = draw(3, 16), draw(16) * 0.1
    shares, experts = PRIMITIVES["fused_add_topk_div"].golden(scores, bias, **GROUPS)
    for token in range(3):
        plain = [1 / (1 + np.exp(-score)) for score in scores[token]]
        ranked = [share + extra for share, extra in zip(plain, bias, strict=True)]
        groups = [range(first, first + 4) for first in range(0, 16, 4)]
        groups.sort(key=lambda group: -sum(sorted(ranked[e] for e in group)[-2:]))
        remaining = sorted([*groups[0], *groups[1]], key=lambda expert: -ranked[expert])[:3]
        assert experts[token].tolist() == remaining
        total = sum(plain[expert] for expert in remaining)
        want = [2.5 * plain[expert] / total for expert in remaining]
        np.testing.assert_allclose(shares[token], want, rtol=1e-5)


class LatentStep(mindspore.nn.Cell):
    """Latent attention of a step."""

    def __init__(self):
        super().__init__()
        self.mask = make("attention_mask", "composed", groups=2, block_size=4)
        self.attention = make("mla", "composed", head_num=2, scale=0.5)

    def construct(self, q, q_rope, kv, rope, tables, lengths, counts, slots, attn_mask):
        mask = self.mask(attn_mask, slots, lengths, counts, tables)
        return self.attention(q, q_rope, kv, rope, tables, lengths, mask, counts)


def test_latent_attention_equals_its_golden_and_plain_attention():
    q, q_rope = draw(4, 2, 8), draw(4, 2, 4)
    kv, rope = draw(5, 4, 1, 8), draw(5, 4, 1, 4)
    tables = np.array([[3, 1], [2, 0]], np.int32)
    lengths, counts = np.array([6, 3], np.int32), np.array([3, 1], np.int32)
    arrays = [q, q_rope, kv, rope, tables, lengths, counts, np.zeros(4, np.int32),
              np.zeros((1, 1), np.float32)]  # fmt: skip
    cell = LatentStep()
    tensors = [mindspore.Tensor(x) for x in arrays]
    cell.set_inputs(*[
        x if index in (2, 3)
        else mindspore.Tensor(shape=[None] * (x.ndim if x.dtype == mindspore.int32 else 1)
                              + list(x.shape[x.ndim if x.dtype == mindspore.int32 else 1:]),
                              dtype=x.dtype)
        for index, x in enumerate(tensors)
    ])  # fmt: skip
    out = cell.compile_and_run(*tensors).asnumpy()
    golden = PRIMITIVES["mla"].golden(
        q, q_rope, kv, rope, tables, lengths, None, counts, head_num=2, scale=0.5
    )
    np.testing.assert_allclose(out, golden, atol=1e-5)
    keys = np.concatenate([kv, rope], -1)[[3, 1]].reshape(8, 12)[:6]
    for head in range(2):  # the last token of the first sequence sees all of it
        scores = keys @ np.concatenate([q[2, head], q_rope[2, head]]) * 0.5
        shares = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(golden[2, head], shares @ keys[:, :8], atol=1e-5)
