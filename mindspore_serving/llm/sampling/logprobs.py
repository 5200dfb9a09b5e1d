"""Log-probabilities of tokens under the model's own distribution, and their ranks.

Temperature, filters and penalties do not change them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.generation import TokenLogprob
from mindspore_serving.llm.sampling.draw import top_ids

Logits = npt.NDArray[np.float32]


def token_logprobs(logits: Logits, token_id: int, k: int) -> tuple[TokenLogprob, ...]:
    """The token's own entry, then the `k` likeliest, best first (the token again, if among them).

    `logits` is [V].  Of equally likely tokens the lower id has the lower rank.
    """
    best = float(logits.max())
    log_sum = best + float(np.log(np.exp(logits - np.float32(best)).sum()))
    own = logits[token_id]
    rank = np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own)
    entries = [TokenLogprob(token_id, float(own) - log_sum, int(rank))]
    if k:
        entries += [
            TokenLogprob(int(other), float(logits[other]) - log_sum, place)
            for place, other in enumerate(top_ids(logits, k))
        ]
    return tuple(entries)


def prompt_logprobs(
    logits: Logits, targets: Sequence[int], k: int
) -> list[tuple[TokenLogprob, ...]]:
    """`token_logprobs` of each of `targets` under the row of `logits` [T, V] that predicts it.

    Logits that hold no distribution (NaN, +inf, or -inf alone) give the token NaN and the rank -1.
    """
    return [
        token_logprobs(row, target, k)
        if np.isfinite(row.max())
        else (TokenLogprob(target, float("nan"), -1),)
        for row, target in zip(logits, targets, strict=True)
    ]
