"""Sampling from the best logits of each row, where the others are not needed.

The tokens are those that `sampler.sample` takes from all logits.  Knows no device.
"""

from collections.abc import Sequence

import numpy as np

from mindspore_serving.llm.sampling.draw import Uniforms, draw, is_greedy
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.sampling.sampler import Sampled
from mindspore_serving.llm.step import BestLogits


def num_best(rows: Sequence[SampleRow]) -> int:
    """Return how many of the best logits each row needs; 0 if one needs more than `top_k`."""
    counts = [_num_best(row) for row in rows]
    return max(counts) if counts and all(counts) else 0


def _num_best(row: SampleRow) -> int:
    params = row.params
    if params.logprobs is not None or params.top_n_sigma or row.has_edits():
        return 0
    if is_greedy(params):
        return 1
    return 0 if params.mirostat else params.top_k


def sample_best(best: BestLogits, rows: Sequence[SampleRow]) -> list[Sampled] | None:
    """Sample a token for each of `rows`, which `num_best` is not 0 for.

    None if all logits are needed after all: a row's last ones are equal, so that others may be as
    well, or its best is not finite.
    """
    order = np.lexsort((best.ids, -best.values))  # of equal logits the lower id is first
    values = np.take_along_axis(best.values, order, 1)
    ids = np.take_along_axis(best.ids, order, 1)
    needed = np.array([_num_best(row) for row in rows]) - 1
    is_clear = values[np.arange(len(rows)), needed] > values[:, -1]
    if not (is_clear & np.isfinite(values[:, 0])).all():
        return None
    uniforms = Uniforms()
    chosen = [
        0
        if is_greedy(row.params)
        else draw(logits.copy(), float(logits[0]), row.params, uniforms.at(row.seed, row.position))
        for logits, row in zip(values, rows, strict=True)
    ]
    return [Sampled(int(row[index])) for row, index in zip(ids, chosen, strict=True)]


def likeliest_below(best: BestLogits, vocab_size: int) -> list[int]:
    """Return the likeliest id below `vocab_size` of each row."""
    values = np.where(best.ids < vocab_size, best.values, -np.inf)
    if np.isfinite(values.max(axis=1)).all():
        is_best = values == values.max(axis=1, keepdims=True)
        likeliest = np.where(is_best, best.ids, vocab_size).min(axis=1)
    else:
        likeliest = best.read_all()[:, :vocab_size].argmax(axis=1)
    return [int(token) for token in likeliest]
