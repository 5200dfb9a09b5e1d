"""Composed attention over packed sequences and a paged cache equals the numpy golden."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore_serving.llm.runtimes.mindir.library import mindspore  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 4, 4
SHAPE = {"head_num": HEADS, "kv_head_num": KV_HEADS, "scale": 0.5}
GROUPS = HEADS // KV_HEADS
LENGTHS, COUNTS = [9, 5, 2], [3, 1, 2]  # keys and new tokens of each sequence
TABLES = [[4, 1, 6], [3, 2, -1], [5, 0, 0]]


class Step(mindspore.nn.Cell):
    """A step of one layer: the cache is written, then read."""

    def __init__(self, is_paged, *, sees=None, **options):
        super().__init__()
        self.is_paged = is_paged
        self.mask = make(
            "attention_mask", "composed", head_num=HEADS, kv_head_num=KV_HEADS,
            block_size=BLOCK, is_paged=is_paged, **sees or {},
        )  # fmt: skip
        self.write = make("reshape_and_cache", "composed")
        name = "paged_attention" if is_paged else "flash_attention"
        self.attention = make(name, "composed", **SHAPE, **options)

    def construct(self, q, k, v, key_cache, value_cache, slots, attn_mask, lengths, counts, tables):
        mask = self.mask(attn_mask, slots, lengths, counts, tables)
        q = mindspore.ops.depend(q, self.write(k, v, key_cache, value_cache, slots))
        if self.is_paged:
            return self.attention(q, key_cache, value_cache, tables, lengths, mask, counts)
        return self.attention(q, k, v, mask, lengths)


def spec(*shape, dtype=mindspore.int32):
    return mindspore.Tensor(shape=list(shape), dtype=dtype)


def tensors(arrays):
    return [mindspore.Tensor(array) for array in arrays]


def compiled(cell, dtype=mindspore.float32):
    cache = spec(None, BLOCK, KV_HEADS, DIM, dtype=dtype)
    cell.set_inputs(
        spec(None, HEADS * DIM, dtype=dtype), spec(None, KV_HEADS * DIM, dtype=dtype),
        spec(None, KV_HEADS * DIM, dtype=dtype), cache, cache, spec(None),
        spec(None, None, dtype=dtype), spec(None), spec(None), spec(None, None),
    )  # fmt: skip
    return cell.compile_and_run


def inputs(lengths, counts, tables, dtype=np.float32, padding=0):
    """Return q, k, v, caches, slots, a causal mask, lengths, counts and tables."""
    random = np.random.default_rng(7)
    total = sum(counts) + padding

    def draw(*shape):
        return random.standard_normal(shape).astype(dtype)

    slots = [
        table[position // BLOCK] * BLOCK + position % BLOCK
        for table, length, count in zip(tables, lengths, counts, strict=True)
        for position in range(length - count, length)
    ]
    mask = np.full((total, max(lengths)), -10000, dtype)
    row = 0
    for length, count in zip(lengths, counts, strict=True):
        for position in range(length - count, length):
            mask[row, : position + 1] = 0
            row += 1
    width = KV_HEADS * DIM
    integers = [np.array(x, np.int32) for x in ([*slots, *[-1] * padding], lengths, counts, tables)]
    caches = [draw(8, BLOCK, KV_HEADS, DIM) for _ in range(2)]
    return [draw(total, HEADS * DIM), draw(total, width), draw(total, width), *caches,
            integers[0], mask, *integers[1:]]  # fmt: skip


def golden(arrays, is_paged):
    q, k, v, keys, values, slots, mask, lengths, counts, tables = arrays
    keys, values = keys.copy(), values.copy()
    PRIMITIVES["reshape_and_cache"].golden(k, v, keys, values, slots)
    if is_paged:
        attention = PRIMITIVES["paged_attention"].golden
        out = attention(q, keys, values, tables, lengths, mask, counts, **SHAPE)
    else:
        out = PRIMITIVES["flash_attention"].golden(q, k, v, mask, lengths, **SHAPE)
    return out, keys, values


@pytest.fixture(scope="module")
def paged():
    return compiled(Step(True))


@pytest.fixture(scope="module")
def packed():
    return compiled(Step(False))


def check(step, arrays, is_paged, tolerance=1e-5):
    want, keys, values = golden(arrays, is_paged)
    given = tensors(arrays)
    out = step(*given).asnumpy()
    count = int(arrays[8].sum())
    np.testing.assert_allclose(out[:count], want[:count], atol=tolerance)
    np.testing.assert_array_equal(given[3].asnumpy(), keys)
    np.testing.assert_array_equal(given[4].asnumpy(), values)
    assert np.isfinite(out).all()


def test_paged_attention_with_several_new_tokens_and_a_past(paged):
    check(paged, inputs(LENGTHS, COUNTS, TABLES), True)


def test_paged_attention_that_decodes(paged):
    check(paged, inputs(LENGTHS, [1, 1, 1], TABLES), True)


def test_paged_attention_with_padding_tokens_writes_only_the_tokens(paged):
    check(paged, inputs(LENGTHS, COUNTS, TABLES, padding=3), True)


def test_flash_attention_keeps_packed_sequences_apart(packed):
    check(packed, inputs([3, 1, 2], [3, 1, 2], TABLES), False)


def naive(arrays, *, window=0, softcap=0.0, alibi=None, sinks=None):
    """Attend one query head of one token at a time, with the keys it sees alone."""
    q, k, v, keys, values, slots, _, lengths, counts, tables = arrays
    keys, values = (x.copy().reshape(-1, KV_HEADS, DIM) for x in (keys, values))
    keys[slots], values[slots] = (x.reshape(-1, KV_HEADS, DIM) for x in (k, v))
    out, row = np.zeros((len(q), HEADS, DIM), np.float32), 0
    for length, count, table in zip(lengths, counts, tables, strict=True):
        for position in range(length - count, length):
            first = max(0, position - window + 1) if window else 0
            seen = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(first, position + 1)]
            for head in range(HEADS):
                kv_head = head // GROUPS
                scores = keys[seen, kv_head] @ q[row].reshape(HEADS, DIM)[head] * SHAPE["scale"]
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                if alibi:
                    scores -= alibi[head] * np.arange(position - first, -1, -1)
                shares = np.exp(scores)
                extra = 0 if sinks is None else np.exp(sinks[head])
                out[row, head] = shares @ values[seen, kv_head] / (shares.sum() + extra)
            row += 1
    return out.reshape(len(q), -1)


def test_goldens_of_attention_equal_a_loop_over_heads_and_tokens():
    arrays = inputs(LENGTHS, COUNTS, TABLES)
    np.testing.assert_allclose(golden(arrays, True)[0], naive(arrays), atol=1e-5)
    arrays = inputs([3, 1, 2], [3, 1, 2], TABLES)
    np.testing.assert_allclose(golden(arrays, False)[0], naive(arrays), atol=1e-5)


SINKS = (0.5, -1.0, 2.0, 0.0)


class WithSinks(Step):
    """A step whose attention has sinks."""

    def construct(self, q, k, v, key_cache, value_cache, slots, attn_mask, lengths, counts, tables):
        sinks = mindspore.Tensor(SINKS, mindspore.float32)
        mask = self.mask(attn_mask, slots, lengths, counts, tables)
        q = mindspore.ops.depend(q, self.write(k, v, key_cache, value_cache, slots))
        if self.is_paged:
            return self.attention(q, key_cache, value_cache, tables, lengths, mask, counts, sinks)
        return self.attention(q, k, v, mask, lengths, sinks)


@pytest.mark.parametrize(
    ("is_paged", "sees", "options", "sinks"),
    [
        (False, {"window": 2}, {"softcap": 0.7}, None),
        (True, {"alibi": (0.5, 0.25, 0.1, 0.0)}, {}, SINKS),
    ],
)
def test_windows_caps_slopes_and_sinks_equal_a_loop(is_paged, sees, options, sinks):
    step = compiled((Step if sinks is None else WithSinks)(is_paged, sees=sees, **options))
    lengths = LENGTHS if is_paged else [3, 1, 2]
    arrays = inputs(lengths, COUNTS if is_paged else lengths, TABLES)
    out = step(*tensors(arrays)).asnumpy()
    np.testing.assert_allclose(out, naive(arrays, **sees, **options, sinks=sinks), atol=1e-5)
