"""Sampling of the next token of every sequence of a batch, each with its own parameters.

The order is that of `SamplingParams`: penalties and biases, bans, temperature, filters.  A token
depends on its row's logits, parameters, seed and position, not on the batch.  Log-probabilities and
ranks are those of the model's own distribution, before all of these.  Knows no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import TokenLogprob
from mindspore_serving.llm.sampling.draw import Uniforms, draw, is_greedy, top_ids
from mindspore_serving.llm.sampling.edits import SampleRow

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token chosen for a row; `token_id` is -1 if there is an `error`.

    `logprobs` has the token's own entry first, then the `params.logprobs` likeliest, best first
    (the token again, if among them); None if not requested.
    """

    token_id: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None  # why this row has no token
    is_barred: bool = False  # the error is that every token is forbidden
    blames_request: bool = False  # parameters or grammar cause the error, not the model


def sample(logits: Logits, rows: Sequence[SampleRow]) -> list[Sampled]:
    """Sample a token for each of `rows` from `logits` [len(rows), V], which may be overwritten.

    A row whose logits hold NaN or +inf, or that may choose nothing, gets an `error`.
    """
    if logits.ndim != 2 or len(logits) != len(rows):
        raise ValueError(f"logits of shape {logits.shape} for {len(rows)} rows: This is a bug")
    logits = np.require(logits, np.float32, ["C", "W"])
    best_ids = logits.argmax(axis=1)  # that of a NaN if there is one
    best = logits[np.arange(len(rows)), best_ids]
    is_usable = np.isfinite(best)
    uniforms = Uniforms()
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            _sample_row(logits[index], row, int(best_ids[index]), uniforms)
            if is_usable[index]
            else Sampled(-1, error=_describe(logits[index]))
            for index, row in enumerate(rows)
        ]


def _sample_row(logits: Logits, row: SampleRow, best_id: int, uniforms: Uniforms) -> Sampled:
    params = row.params
    unedited = logits if params.logprobs is None else logits.copy()
    if row.has_edits():
        row.edit(logits)
        best_id = int(logits.argmax())
        if not np.isfinite(logits[best_id]):
            if not np.all(logits == -np.inf):
                error = f"penalties and logit_bias overflow: {_describe(logits)}"
                return Sampled(-1, error=error, blames_request=True)
            error = (
                f"none of the {len(logits)} tokens may be chosen: allowed_token_ids, the grammar, "
                "bad_words and min_tokens together forbid every one"
            )
            return Sampled(-1, error=error, is_barred=True, blames_request=True)
    if is_greedy(params):
        token_id = best_id
    else:
        uniform, best = uniforms.at(row.seed, row.position), float(logits[best_id])
        if row.surprise is None:
            token_id = draw(logits, best, params, uniform)
        else:
            token_id = row.surprise.draw(logits, best, row.position, uniform)
    if params.logprobs is None:
        return Sampled(token_id)
    return Sampled(token_id, token_logprobs(unedited, token_id, params.logprobs))


def _describe(logits: Logits) -> str:
    num_nan = int(np.isnan(logits).sum())
    num_inf = int((logits == np.inf).sum())
    return (
        f"the model's logits cannot be sampled from: of {len(logits)}, {num_nan} are NaN, "
        f"{num_inf} are +inf and {int((logits == -np.inf).sum())} are -inf"
    )


def token_logprobs(logits: Logits, token_id: int, k: int) -> tuple[TokenLogprob, ...]:
    """Return the token's own entry, then the `k` likeliest, best first (it again, if among them).

    `logits` is [V].  Of equally likely tokens the lower id has the lower rank.
    """
    best = float(logits.max())
    log_sum = best + float(np.log(np.exp(logits - np.float32(best)).sum()))
    logit = logits[token_id]
    rank = np.count_nonzero(logits > logit) + np.count_nonzero(logits[:token_id] == logit)
    entries = [TokenLogprob(token_id, float(logit) - log_sum, int(rank))]
    if k:
        entries += [
            TokenLogprob(int(other), float(logits[other]) - log_sum, other_rank)
            for other_rank, other in enumerate(top_ids(logits, k))
        ]
    return tuple(entries)


def prompt_logprobs(
    logits: Logits, targets: Sequence[int], k: int
) -> list[tuple[TokenLogprob, ...]]:
    """Return `token_logprobs` of each of `targets` under the row of `logits` that predicts it.

    `logits` is [T, V].  Logits that hold no distribution (NaN, +inf, or -inf only) give the token
    NaN and the rank -1.
    """
    return [
        token_logprobs(row, target, k)
        if np.isfinite(row.max())
        else (TokenLogprob(target, float("nan"), -1),)
        for row, target in zip(logits, targets, strict=True)
    ]
