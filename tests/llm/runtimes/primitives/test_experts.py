"""Goldens of quantised products, routing to experts and latent attention, by hand and by loops."""

import numpy as np

from mindspore_serving.llm.runtimes.mindspore.primitives import goldens_experts

RANDOM = np.random.default_rng(5)
GROUPS = {"group_num": 4, "group_topk": 2, "n": 2, "k": 3}


def draw(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_four_bits_are_two_to_a_byte_with_the_low_half_first():
    weight = np.array([[0x8F]], np.uint8).view(np.int8)  # low 0xF = -1, high 0x8 = -8
    golden = goldens_experts.weight_quant_matmul
    scale, offset = np.array([2.0, 0.5], np.float32), np.array([1.0, 8.0], np.float32)
    x = np.array([[3.0]], np.float32)
    assert golden(x, weight, scale, None, bits=4).tolist() == [[-6, -12]]
    assert golden(x, weight, scale, offset, bits=4).tolist() == [[0, 0]]


def test_both_formulas_of_quantisation_by_hand():
    golden = goldens_experts.quantise
    x = np.array([[1.0, -3.0, 500.0]], np.float32)
    scale = np.array([2.0], np.float32)
    assert golden(x, scale, np.array([3], np.int8)).tolist() == [[3, 1, 127]]
    assert golden(x, scale, np.array([3.0], np.float32)).tolist() == [[5, -3, 127]]


def test_a_block_of_experts_equals_a_loop_over_tokens():
    x, weight = draw(4, 8), draw(6, 8, 5)
    shares, chosen, _ = goldens_experts.moe_gating_topk_softmax(draw(4, 6), k=2)
    rows, places, counts = goldens_experts.moe_init_routing(x, chosen, num_experts=6)
    out = goldens_experts.moe_unpermute(
        goldens_experts.grouped_matmul(rows, weight, counts), places, shares
    )
    for token in range(4):
        want = sum(
            s * (x[token] @ weight[e]) for s, e in zip(shares[token], chosen[token], strict=True)
        )
        np.testing.assert_allclose(out[token], want, rtol=1e-5, atol=1e-5)


def test_routing_in_groups_equals_a_loop_over_groups_and_experts():
    scores, bias = draw(3, 16), draw(16) * 0.1
    shares, experts = goldens_experts.fused_add_topk_div(scores, bias, **GROUPS)
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


def test_integers_of_a_quantised_product_by_hand():
    x, weight = np.array([[2, -3]], np.int8), np.array([[5, 1], [0, 4]], np.int8)
    scale, bias = np.array([0.5, 2.0], np.float32), np.array([1, 10], np.int32)
    product = goldens_experts.quant_matmul
    assert product(x, weight, scale, bias, None, dtype="float32").tolist() == [[4, -4]]
    bits, pertoken = scale.view(np.int32).astype(np.int64), np.array([0.25], np.float32)
    assert product(x, weight, bits, None, pertoken, dtype="float32").tolist() == [[0.875, -6]]
    rows, scales = goldens_experts.dynamic_quant(np.array([[1.0, -2.0], [0, 0]], np.float32))
    assert rows.tolist() == [[64, -127], [0, 0]]
    np.testing.assert_allclose(scales[0], 2 / 127, rtol=1e-6)


def test_latent_attention_equals_attention_to_joined_keys():
    q, q_rope = draw(4, 2, 8), draw(4, 2, 4)
    kv, rope = draw(5, 4, 1, 8), draw(5, 4, 1, 4)
    tables, lengths = np.array([[3, 1], [2, 0]], np.int32), np.array([6, 3], np.int32)
    golden = goldens_experts.mla(
        q, q_rope, kv, rope, tables, lengths, None, np.array([3, 1]), head_num=2, scale=0.5
    )
    keys = np.concatenate([kv, rope], -1)[[3, 1]].reshape(8, 12)
    for row, length in ((1, 5), (2, 6)):  # the last two tokens of the first sequence
        for head in range(2):
            joined = np.concatenate([q[row, head], q_rope[row, head]])
            shares = np.exp(keys[:length] @ joined * 0.5)
            want = shares @ keys[:length, :8] / shares.sum()
            np.testing.assert_allclose(golden[row, head], want, atol=1e-5)
