"""Drawing of a token from a row of logits: exact, without sorting a vocabulary.

What makes sampling slow is a random number per token, and then sorting; here each row costs one
random number, one exponential per token, and sums.  Rows are computed one after another: a row fits
into the processor's cache, and cannot depend on other rows.  Knows no penalties.
"""

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]
KeepMask = npt.NDArray[np.bool_]
Order = npt.NDArray[np.int32]
Ids = npt.NDArray[np.int64]

_MIN_TEMPERATURE = 1e-30  # below it, differences of float32 logits overflow anyway
_NUM_COLUMNS = 256
_NUM_SORTED = 512  # up to so many values are sorted directly


class Uniforms:
    """Random numbers that depend on (seed, position) only: a counter-based generator.

    Philox: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """

    __slots__ = ("_philox", "_state")

    def __init__(self) -> None:
        self._philox: np.random.Philox | None = None  # made when needed: costs more than greedy

    def at(self, seed: int, position: int) -> float:
        """Return a number in [0, 1), a multiple of 2**-53."""
        if self._philox is None:
            self._philox = np.random.Philox(key=0)
            self._state = self._philox.state
        state = self._state["state"]
        state["key"][0] = seed
        state["counter"][0] = position
        self._philox.state = self._state
        bits: int = self._philox.random_raw()
        return (bits >> 11) * 2.0**-53


def is_greedy(params: SamplingParams) -> bool:
    """Return whether the likeliest token is chosen."""
    return params.temperature == 0 or params.top_k == 1


def draw(logits: Logits, best: float, params: SamplingParams, uniform: float) -> int:
    """Return the token for `uniform` in [0, 1); `best` is the largest of `logits` [V].

    `logits` are overwritten.
    """
    ids, weights = weigh(logits, best, params)
    share = params.xtc_probability
    if uniform < share:  # either part of the number is uniform, so no second one is needed
        uniform = uniform / share
        exclude_top(weights, params.xtc_threshold)
    elif share:
        uniform = (uniform - share) / (1 - share)
    if ids is None:
        return draw_by_weight(weights, uniform)
    cumulative = weights.cumsum(dtype=np.float64)
    return int(ids[_find(cumulative, uniform * float(cumulative[-1]))])


def weigh(logits: Logits, best: float, params: SamplingParams) -> tuple[Ids | None, Logits]:
    """Return weights in proportion to probabilities, 0 if filtered out, and the ids of the tokens.

    The ids are None for all tokens.  `logits` are overwritten.  Filters apply in the order
    top_n_sigma, top_k, top_p, min_p, typical_p, each to what the one before leaves.  Of equally
    likely tokens lower ids are kept.
    """
    ids = None
    lowest = None
    if params.top_n_sigma:
        sigma = float(logits[np.isfinite(logits)].std(dtype=np.float64))
        lowest = best - params.top_n_sigma * sigma
    if 0 < params.top_k < len(logits):
        ids = top_ids(logits, params.top_k)
        logits = logits[ids]
    if lowest is not None:  # behind top_k with the same result: top_k sorts fewer values so
        logits[logits < lowest] = -np.inf
    weights = scale(logits, best, params.temperature)
    if params.top_p < 1:
        weights *= nucleus(weights, params.top_p)
    if params.min_p > 0:
        weights *= weights >= np.float32(params.min_p)
    if params.typical_p < 1:
        weights *= typical(weights, params.typical_p)
    return ids, weights


def scale(logits: Logits, best: float, temperature: float) -> Logits:
    """Return weights in proportion to probabilities, in place of `logits`; the largest is 1."""
    logits -= np.float32(best)
    logits *= np.float32(1 / max(temperature, _MIN_TEMPERATURE))
    return np.exp(logits, out=logits)


def exclude_top(weights: Logits, threshold: float) -> None:
    """Remove the weights of at least `threshold` of their sum, all but the smallest of them (XTC).

    Of equal weights the first stays.
    """
    top = np.flatnonzero(weights >= threshold * float(weights.sum()))
    if len(top) > 1:
        kept = top[weights[top].argmin()]
        weights[top[top != kept]] = 0


def draw_by_weight(weights: Logits, uniform: float) -> int:
    """Return an index in proportion to the weights.

    It chooses a column of the weights as a table of `_NUM_COLUMNS`, then a row of it, so that only
    the columns are summed over the whole vocabulary.
    """
    num_rows = len(weights) // _NUM_COLUMNS
    size = num_rows * _NUM_COLUMNS
    table, rest = weights[:size].reshape(num_rows, _NUM_COLUMNS), weights[size:]
    sums = np.empty(_NUM_COLUMNS + 1)
    sums[:-1] = table.sum(axis=0)
    sums[-1] = rest.sum()
    cumulative = sums.cumsum()
    target = uniform * float(cumulative[-1])
    column = _find(cumulative, target)
    is_rest = column == _NUM_COLUMNS
    within = (rest if is_rest else table[:, column]).cumsum(dtype=np.float64)
    row = _find(within, target - (float(cumulative[column - 1]) if column else 0.0))
    return size + row if is_rest else row * _NUM_COLUMNS + column


def _find(cumulative: npt.NDArray[np.float64], target: float) -> int:
    """Return the first index over `target`; the last that adds anything if rounding leaves none."""
    index = int(cumulative.searchsorted(target, side="right"))
    if index == len(cumulative):
        index = int(cumulative.searchsorted(cumulative[-1], side="left"))
    return index


def top_ids(logits: Logits, k: int) -> Ids:
    """Return the ids of the `k` largest of `logits`, best first; of equal ones the lowest ids."""
    ids = np.flatnonzero(logits >= _lower_bound(logits, min(k, len(logits))))
    best: Ids = ids[(-logits[ids]).argsort(kind="stable")[:k]]
    return best


def _lower_bound(values: Logits, k: int) -> np.float32:
    """Return a value at or below the k-th largest, and close to it.

    The k-th largest of the maxima of disjoint groups is such a value, and the maxima of a table's
    columns take a fraction of the time that a partition of all values takes.
    """
    num_columns = max(_NUM_COLUMNS, 4 * k)
    num_rows = len(values) // num_columns
    if num_rows > 1:
        values = values[: num_rows * num_columns].reshape(num_rows, num_columns).max(axis=0)
    index = len(values) - k
    bound: np.float32 = np.partition(values, index)[index]
    return bound


def nucleus(weights: Logits, top_p: float) -> KeepMask:
    """Return a mask of the fewest largest weights whose sum is `top_p` of the total.

    Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.
    """
    total = float(weights.sum())
    heavy = _drop_tail(weights, (1 - top_p) * total)
    border, count = _border(_descending(heavy), heavy, top_p * total)
    return _first(_descending(weights), border, count)


def _drop_tail(weights: Logits, slack: float) -> Logits:
    """Remove smallest weights, as many as is cheap, whose sum is below `slack`.

    Of m weights, those below slack / m sum to less than `slack`; repeated while it halves them.
    """
    while True:
        is_heavy = weights >= np.float32(slack / len(weights))
        if not 0 < 2 * np.count_nonzero(is_heavy) <= len(weights):
            return weights
        heavy = weights[np.flatnonzero(is_heavy)]
        slack -= float(weights.sum()) - float(heavy.sum())
        weights = heavy


def typical(weights: Logits, mass: float) -> KeepMask:
    """Return a mask of the fewest weights that sum to `mass`, nearest to the mean surprise first.

    Meister et al., "Locally Typical Sampling", TACL 2023.
    """
    probabilities = weights / weights.sum()
    surprise = -np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    order = np.abs(surprise - probabilities @ surprise).view(np.int32)
    border, count = _border(order, probabilities, mass)
    return _first(order, border, count)


def _descending(weights: Logits) -> Order:
    """Return keys that sort weights in descending order.

    The bits of floats that are not negative have the order of the floats.
    """
    return -weights.view(np.int32)


def _border(order: Order, weights: Logits, target: float) -> tuple[int, int]:
    """Return the last key of `order`, ascending, until weights sum to `target`, and their number.

    Sums by the upper bits find the border; only values with the same upper bits are sorted.
    """
    inside = np.arange(len(order))
    num_before, sum_before = 0, 0.0
    if len(order) > _NUM_SORTED:
        upper = order >> 18
        upper -= upper.min()
        sums = np.bincount(upper, weights).cumsum()
        bucket = min(int(sums.searchsorted(target, side="left")), len(sums) - 1)
        inside = np.flatnonzero(upper == bucket)
        num_before = int(np.count_nonzero(upper < bucket))
        sum_before = float(sums[bucket - 1]) if bucket else 0.0
    inside = inside[order[inside].argsort(kind="stable")]
    sums = weights[inside].cumsum(dtype=np.float64)
    last = min(int(sums.searchsorted(target - sum_before, side="left")), len(inside) - 1)
    return int(order[inside[last]]), num_before + last + 1


def _first(order: Order, border: int, count: int) -> KeepMask:
    """Return a mask of the first `count` in `order`, up to `border`; of equal ones the first."""
    kept: KeepMask = order <= border
    excess = int(np.count_nonzero(kept)) - count
    if excess:
        kept[np.flatnonzero(order == border)[-excess:]] = False
    return kept
