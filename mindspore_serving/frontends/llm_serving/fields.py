"""The fields of llm-serving's parameters.  The original put what is out of range into it, and so do
the translations here; nothing is refused.
"""

from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import MAX_LOGPROBS
from mindspore_serving.frontends.chat.fields import Fields, translation

DEFAULT_TOP_K, MOST_TOP_K = 3, 100
DEFAULT_MAX_NEW_TOKENS = 300
LEAST_TOP_P = 0.01
MOST_TEMPERATURE = 100.0  # of ours; up to 65536 is accepted, and makes no difference any more
_MOST_TOKENS = 2**31


@translation("temperature", "do_sample")
def temperature(given: Any, _: ModelCard) -> float:
    """0, the likeliest token, if `do_sample` is false or it is not over 1e-5 and up to 65536; at
    most 100
    """
    value = 1.0 if given.temperature is None else given.temperature
    is_sampled = given.do_sample and 1e-5 < value <= 65536
    return min(value, MOST_TEMPERATURE) if is_sampled else 0.0


@translation("top_k")
def top_k(given: Any, card: ModelCard) -> int:
    """1 if it is not from 1 to the vocabulary's size; at most 100; 3 if it is not given"""
    value = DEFAULT_TOP_K if given.top_k is None else given.top_k
    return min(value, MOST_TOP_K) if 0 < value < card.vocab_size else 1


@translation("top_p")
def top_p(given: Any, _: ModelCard) -> float:
    """0.01 if it is 0 or less, 1 if it is over 1"""
    value = given.top_p
    if value is None or 0 < value <= 1:
        return value or 1.0
    return LEAST_TOP_P if value <= 0 else 1.0


@translation("typical_p")
def typical_p(given: Any, _: ModelCard) -> float:
    """1, which is none, if it is not between 0 and 1"""
    value = given.typical_p or 1.0
    return value if 0 < value < 1 else 1.0


@translation("repetition_penalty")
def repetition_penalty(given: Any, _: ModelCard) -> float:
    """1, which is none, if it is 0 or less"""
    value = 1.0 if given.repetition_penalty is None else given.repetition_penalty
    return value if 0 < value < float("inf") else 1.0


@translation("max_new_tokens", to="max_tokens")
def max_tokens(given: Any, _: ModelCard) -> int:
    """at least 1; 300 if it is not given"""
    wanted = given.max_new_tokens
    return min(max(1, DEFAULT_MAX_NEW_TOKENS if wanted is None else wanted), _MOST_TOKENS)


@translation("seed")
def seed(given: Any, _: ModelCard) -> int | None:
    """0 is none; modulo 2**64"""
    value: int = given.seed or 0
    return value % (1 << 64) if value else None


@translation("stop")
def stop(given: Any, _: ModelCard) -> list[str]:
    """without empty texts"""
    return [text for text in given.stop or () if text]


@translation("stop", to="include_stop")
def include_stop(given: Any, _: ModelCard) -> bool:
    """true: the text stays in the answer"""
    return True


@translation("top_n_tokens", to="logprobs")
def logprobs(given: Any, _: ModelCard) -> int:
    """at least 0, at most 64"""
    return min(max(given.top_n_tokens or 0, 0), MAX_LOGPROBS)


@translation("truncate")
def truncate(given: Any, card: ModelCard) -> int | None:
    """true makes room for the answer; a number is that of the tokens kept at the end"""
    if given.truncate is True:
        room: int = card.max_model_len - max_tokens.make(given, card)
        return max(1, room)
    count: int = given.truncate or 0
    return min(count, card.max_model_len) if count > 0 else None


FIELDS = Fields(
    "llm_serving",
    translated=(
        temperature,
        top_k,
        top_p,
        typical_p,
        repetition_penalty,
        max_tokens,
        seed,
        stop,
        include_stop,
        logprobs,
        truncate,
    ),
    ignored=("watermark",),
)
