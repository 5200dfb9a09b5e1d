"""The fields of llm-serving's parameters.  The original put what is out of range into it, and so do
the translations here; nothing is refused.
"""

from typing import Any

from mindspore_serving.core.generation import MAX_LOGPROBS
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.fields import Fields, Translation

DEFAULT_TOP_K, MOST_TOP_K = 3, 100
DEFAULT_MAX_NEW_TOKENS = 300
LEAST_TOP_P = 0.01
MOST_TEMPERATURE = 100.0  # of ours; up to 65536 is accepted, and makes no difference any more
_MOST_TOKENS = 2**31


def _temperature(given: Any, _: ModelCard) -> float:
    temperature = 1.0 if given.temperature is None else given.temperature
    is_sampled = given.do_sample and 1e-5 < temperature <= 65536
    return min(temperature, MOST_TEMPERATURE) if is_sampled else 0.0


def _top_k(given: Any, card: ModelCard) -> int:
    top_k = DEFAULT_TOP_K if given.top_k is None else given.top_k
    return min(top_k, MOST_TOP_K) if 0 < top_k < card.vocab_size else 1


def _top_p(given: Any, _: ModelCard) -> float:
    top_p = given.top_p
    if top_p is None or 0 < top_p <= 1:
        return top_p or 1.0
    return LEAST_TOP_P if top_p <= 0 else 1.0


def _typical_p(given: Any, _: ModelCard) -> float:
    typical_p = given.typical_p or 1.0
    return typical_p if 0 < typical_p < 1 else 1.0


def _penalty(given: Any, _: ModelCard) -> float:
    penalty = 1.0 if given.repetition_penalty is None else given.repetition_penalty
    return penalty if 0 < penalty < float("inf") else 1.0


def max_tokens(given: Any, _: ModelCard) -> int:
    wanted = given.max_new_tokens
    return min(max(1, DEFAULT_MAX_NEW_TOKENS if wanted is None else wanted), _MOST_TOKENS)


def _truncate(given: Any, card: ModelCard) -> int | None:
    if given.truncate is True:
        return max(1, card.max_model_len - max_tokens(given, card))
    count: int = given.truncate or 0
    return min(count, card.max_model_len) if count > 0 else None


FIELDS = Fields(
    "llm_serving",
    ignored=("watermark",),
    translated=(
        Translation(
            ("temperature", "do_sample"),
            "temperature",
            "0, the likeliest token, if `do_sample` is false or it is not from over 0.00001 to "
            "65536; at most 100",
            _temperature,
        ),
        Translation(
            ("top_k",),
            "top_k",
            "1 if it is not from 1 to the vocabulary's size; at most 100; 3 if it is not given",
            _top_k,
        ),
        Translation(("top_p",), "top_p", "0.01 if it is 0 or less, 1 if it is over 1", _top_p),
        Translation(
            ("typical_p",), "typical_p", "1, which is none, if it is not from 0 to 1", _typical_p
        ),
        Translation(
            ("repetition_penalty",), "repetition_penalty", "1, none, if it is 0 or less", _penalty
        ),
        Translation(
            ("max_new_tokens",), "max_tokens", "at least 1; 300 if it is not given", max_tokens
        ),
        Translation(
            ("seed",),
            "seed",
            "0 is none; modulo 2**64",
            lambda given, card: given.seed % 2**64 if given.seed else None,
        ),
        Translation(
            ("stop",),
            "stop",
            "texts that are empty are left out",
            lambda given, card: [stop for stop in given.stop or () if stop],
        ),
        Translation(
            ("stop",), "include_stop", "the text stays in the answer", lambda given, card: True
        ),
        Translation(
            ("top_n_tokens",),
            "logprobs",
            f"at least 0, at most {MAX_LOGPROBS}",
            lambda given, card: min(max(given.top_n_tokens or 0, 0), MAX_LOGPROBS),
        ),
        Translation(
            ("truncate",),
            "truncate",
            "true makes room for the answer; a number is that of the tokens kept at the end",
            _truncate,
        ),
    ),
)
