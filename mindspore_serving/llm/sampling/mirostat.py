"""Sampling with a target for the surprise of tokens: Mirostat, versions 1 and 2.

Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", ICLR
2021.  Names and defaults of parameters are those of llama.cpp's sampler.
"""

import math

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.draw import draw_by_weight, scale, top_ids

Logits = npt.NDArray[np.float32]

_NUM_FITTED = 100  # likeliest tokens that the exponent of Zipf's law is fitted to


class SurpriseLimit:
    """Limits of a completion's surprise in bits, by position: each follows from the token before.

    Positions may be sampled again, after draft tokens that were not accepted.
    """

    __slots__ = ("_limits", "_params")

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._limits = [2 * params.mirostat_tau]

    def draw(self, logits: Logits, best: float, position: int, uniform: float) -> int:
        """Return the token at `position` for `uniform` in [0, 1); `best` is the largest logit.

        `logits` [V] are overwritten.
        """
        position = min(position, len(self._limits) - 1)
        limit = self._limits[position]
        weights = scale(logits, best, self._params.temperature)
        if self._params.mirostat == 1:
            kept = top_ids(weights, _num_kept(weights, limit))
            weights = weights[kept]
            index = draw_by_weight(weights, uniform)
            token_id = int(kept[index])
        else:
            total = float(weights.sum(dtype=np.float64))
            # At least the likeliest stays, whose weight is 1.
            weights[weights < min(1.0, total * 2.0**-limit)] = 0
            token_id = index = draw_by_weight(weights, uniform)
        share = float(weights[index]) / float(weights.sum(dtype=np.float64))
        error = -math.log2(share) - self._params.mirostat_tau
        del self._limits[position + 1 :]
        self._limits.append(limit - self._params.mirostat_eta * error)
        return token_id


def _num_kept(weights: Logits, limit: float) -> int:
    """Return how many of the likeliest tokens have a mean surprise of about `limit` bits.

    By Zipf's law with the exponent that fits the likeliest tokens, equation 30 of the paper.
    """
    best = weights[top_ids(weights, min(_NUM_FITTED, len(weights)))].astype(np.float64)
    best = best[best > 0]
    if len(best) < 2:
        return 1
    steps = np.log(np.arange(2, len(best) + 1) / np.arange(1, len(best)))
    exponent = float(steps @ np.log(best[:-1] / best[1:]) / (steps @ steps))
    if exponent <= 0:  # all are equally likely
        return len(weights)
    log_size, epsilon = math.log(len(weights)), exponent - 1
    # epsilon / (1 - size ** -epsilon), in logarithms, as 2 ** limit may overflow.
    ratio = epsilon / -math.expm1(-epsilon * log_size) if epsilon else 1 / log_size
    log_count = (math.log(ratio) + limit * math.log(2)) / exponent
    return max(1, round(math.exp(min(log_count, log_size))))
