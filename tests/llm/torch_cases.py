"""Random attention over a paged cache: what a path of the torch runtime makes of it, and what the
definition says, in float64 and one token after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.torch.attention import AttentionPath, GatherPath
from mindspore_serving.llm.runtimes.torch.runner import upload
from mindspore_serving.llm.step import Row, Step

# What a result may be off, as a share of the largest value; float16 keeps 11 bits, bfloat16 8.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SLOPES = (0.5, 0.25, 0.125, 0.0625, 0.03, 0.015, 0.007, 0.003)


@dataclass(frozen=True)
class Case:
    """`rows`: (new tokens, length with them) of each sequence."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    alibi: bool = False
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype = torch.float32
    num_processors: int = 1  # more are more splits
    is_decoding: bool = False  # by the path's `decoding`, as in a graph

    @property
    def spec(self) -> AttentionSpec:
        alibi = SLOPES[: self.heads] if self.alibi else None
        scale = self.head_dim**-0.5
        return AttentionSpec(
            self.heads, self.kv_heads, self.head_dim, scale, self.window, self.softcap, alibi
        )


DECODE = ((1, 1), (1, 15), (1, 16), (1, 17), (1, 33), (1, 64), (1, 100))
MIXED = ((1, 40), (5, 5), (17, 33), (1, 1), (30, 64), (2, 32), (3, 70))
LONG = ((1, 780), (1, 3), (4, 525))  # up to four splits
F16, BF16 = torch.float16, torch.bfloat16

CASES: dict[str, Case] = {
    "decode": Case(DECODE),
    "decode, blocks of 32": Case(DECODE, block_size=32),
    "decode, blocks of 8": Case(DECODE, block_size=8),
    "decode, window": Case(DECODE, window=20),
    "decode, window, softcap": Case(DECODE, window=16, softcap=5.0),
    "decode, alibi": Case(DECODE, alibi=True),
    "decode as in a graph": Case(DECODE, is_decoding=True),
    "decode as in a graph, split": Case(
        ((1, 780), (1, 1), (1, 400)), is_decoding=True, num_processors=32
    ),
    "mixed": Case(MIXED),
    "mixed, blocks of 32": Case(MIXED, block_size=32),
    "mixed, window": Case(MIXED, window=12),
    "mixed, softcap": Case(MIXED, softcap=3.0),
    "mixed, alibi": Case(MIXED, alibi=True),
    "mixed, all of it": Case(MIXED, window=25, softcap=4.0, alibi=True, block_size=32),
    "a prompt of several tiles": Case(((70, 70), (70, 97))),
    "one head": Case(MIXED, heads=1, kv_heads=1),
    "no groups": Case(MIXED, heads=2, kv_heads=2),
    "3 heads for a key": Case(MIXED, heads=6, kv_heads=2, head_dim=8),
    "5 heads for a key": Case(MIXED, heads=5, kv_heads=1, head_dim=24),
    "8 heads for a key": Case(MIXED, heads=8, kv_heads=1, alibi=True),
    "20 heads for a key": Case(((1, 20), (6, 40)), heads=20, kv_heads=1),
    "80 features": Case(((1, 40), (20, 33)), head_dim=80),
    "128 features": Case(((1, 40), (20, 33)), head_dim=128),
    "256 features": Case(((1, 40), (20, 33)), head_dim=256),
    "split": Case(LONG, num_processors=16),
    "split, window": Case(LONG, num_processors=16, window=600),
    "split, alibi, softcap": Case(LONG, num_processors=16, alibi=True, softcap=6.0),
    "float16": Case(MIXED, dtype=F16, cache_dtype=F16),
    "bfloat16": Case(MIXED, dtype=BF16, cache_dtype=BF16),
    "bfloat16, split": Case(LONG, dtype=BF16, cache_dtype=BF16, num_processors=16),
    "float32 of a bfloat16 cache": Case(MIXED, cache_dtype=BF16),
    "bfloat16 of a float16 cache": Case(MIXED, dtype=BF16, cache_dtype=F16),
}


def random_cases(count: int) -> Iterator[tuple[str, Case]]:
    """Any of what may be combined, other than in CASES."""
    rng = np.random.default_rng(11)
    for index in range(count):
        kv_heads = int(rng.integers(1, 4))
        lengths = rng.integers(1, 80, rng.integers(1, 7))
        is_decoding = bool(rng.integers(3) == 0)
        yield (
            f"random {index}",
            Case(
                tuple((1 if is_decoding else int(rng.integers(1, n + 1)), int(n)) for n in lengths),
                heads=kv_heads * int(rng.integers(1, 9)),
                kv_heads=kv_heads,
                head_dim=int(rng.choice([8, 16, 20, 32, 64])),
                block_size=int(rng.choice([16, 32])),
                window=int(rng.choice([0, 3, 7, 16, 50])),
                softcap=float(rng.choice([0, 4])),
                num_processors=int(rng.choice([1, 64])),
                is_decoding=is_decoding,
            ),
        )


CASES |= random_cases(8)


@dataclass(frozen=True)
class Inputs:
    """One layer's; `keys` and `values` are those of each sequence, as the cache rounds them."""

    q: torch.Tensor  # [T, heads, head_dim]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cache: tuple[torch.Tensor, torch.Tensor]
    layout: Layout


def drawn(case: Case, *, unused: float) -> Inputs:
    """Random; blocks in any order; `unused` is what the cache has where no token is."""
    generator = torch.Generator().manual_seed(5)
    counts = [-(-length // case.block_size) for _, length in case.rows]
    order = np.random.default_rng(3).permutation(sum(counts) + 3).tolist()
    shape = (len(order), case.block_size, case.kv_heads, case.head_dim)
    cache = tuple(torch.full(shape, unused, dtype=case.cache_dtype) for _ in range(2))
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    rows = []
    for (num_new, length), count in zip(case.rows, counts, strict=True):
        blocks = [order.pop() for _ in range(count)]
        rows.append(Row([0] * num_new, length - num_new, blocks, 1))
        places = np.arange(length)
        slots = np.array(blocks)[places // case.block_size] * case.block_size
        slots = torch.from_numpy(slots + places % case.block_size)
        for own, stored in zip(parts, cache, strict=True):
            new = torch.randn((length, *shape[2:]), generator=generator).to(case.cache_dtype)
            stored.flatten(0, 1)[slots] = new
            own.append(new)
    layout = lay_out(Step(tuple(rows)), RunnerLimits(case.block_size, shape[0], 1, 10**6))
    q_shape = (len(layout.slots), case.heads, case.head_dim)
    q = 2 * torch.randn(q_shape, generator=generator)
    return Inputs(q.to(case.dtype), *parts, (cache[0], cache[1]), layout)


def computed(path: AttentionPath, case: Case, inputs: Inputs, device: str) -> torch.Tensor:
    """[T, heads, head_dim] by `path`."""
    layout = inputs.layout
    if case.is_decoding:
        rows = np.zeros((len(layout.spans), 3 + max(len(s.blocks) for s in layout.spans)), int)
        for row, span in zip(rows, layout.spans, strict=True):
            row[:3] = span.begin, 1, span.length
            row[3 : 3 + len(span.blocks)] = span.blocks
        attention = path.decoding(upload([rows], device)[0])
    else:
        plan = path.plan(layout)
        attention = plan.attention(upload(plan.arrays, device))
    keys, values = (part.to(device) for part in inputs.cache)
    out = attention.attend(keys, values, inputs.q.flatten(1).to(device), case.spec)
    return out.cpu().view(inputs.q.shape)


def expected(case: Case, inputs: Inputs) -> np.ndarray:
    """The same by the definition, in float64."""
    q = inputs.q.double().numpy()
    out = np.zeros_like(q)
    group = case.heads // case.kv_heads
    for index, span in enumerate(inputs.layout.spans):
        keys, values = (part[index].double().numpy() for part in (inputs.keys, inputs.values))
        for token in range(span.begin, span.end):
            position = span.start + token - span.begin
            first = max(0, position - case.window + 1) if case.window else 0
            seen = slice(first, position + 1)
            for head in range(case.heads):
                scores = keys[seen, head // group] @ q[token, head] * case.spec.scale
                if case.softcap:
                    scores = case.softcap * np.tanh(scores / case.softcap)
                if case.alibi:
                    scores = scores - SLOPES[head] * (position - np.arange(first, position + 1))
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ values[seen, head // group] / weights.sum()
    return out


def error(case: Case, out: torch.Tensor, inputs: Inputs) -> float:
    """Largest deviation, as a share of the largest value; NaN is infinite."""
    wanted = expected(case, inputs)
    share = np.abs(out.double().numpy() - wanted).max() / np.abs(wanted).max()
    return float(share) if np.isfinite(share) else float("inf")


def kernel_error(case: Case, device: str) -> float:
    """Of the Triton kernels, in a cache that is NaN wherever no token is."""
    from mindspore_serving.llm.runtimes.torch.paged import PagedPath

    inputs = drawn(case, unused=float("nan"))
    path = PagedPath.of(case.spec, case.dtype, case.block_size, case.num_processors)
    return error(case, computed(path, case, inputs, device), inputs)


def gather_error(case: Case, device: str) -> float:
    inputs = drawn(case, unused=0.0)
    return error(case, computed(GatherPath(case.block_size), case, inputs, device), inputs)
