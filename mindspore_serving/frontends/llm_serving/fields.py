"""Fields of llm-serving's parameters, and their translations to sampling parameters.

Like the original, the translations move values into their ranges and refuse none.
"""

from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import MAX_LOGPROBS
from mindspore_serving.frontends.chat.fields import Fields, translation

DEFAULT_TOP_K, MAX_TOP_K = 3, 100
DEFAULT_MAX_NEW_TOKENS = 300
MIN_TOP_P = 0.01
MAX_TEMPERATURE = 100.0  # of the engine; up to 65536 is accepted, with the same effect
_MAX_TOKENS = 2**31


@translation("temperature", "do_sample")
def temperature(fields: Any, _: ModelCard) -> float:
    """Use 0, the likeliest token, without `do_sample` or outside of 1e-5 to 65536; at most 100."""
    value = 1.0 if fields.temperature is None else fields.temperature
    is_sampled = fields.do_sample and 1e-5 < value <= 65536
    return min(value, MAX_TEMPERATURE) if is_sampled else 0.0


@translation("top_k")
def top_k(fields: Any, card: ModelCard) -> int:
    """Use 1 outside of 1 to the size of the vocabulary, at most 100; 3 by default."""
    value = DEFAULT_TOP_K if fields.top_k is None else fields.top_k
    return min(value, MAX_TOP_K) if 0 < value < card.vocab_size else 1


@translation("top_p")
def top_p(fields: Any, _: ModelCard) -> float:
    """Use 0.01 if it is 0 or less, 1 if it is over 1."""
    value = fields.top_p
    if value is None or 0 < value <= 1:
        return value or 1.0
    return MIN_TOP_P if value <= 0 else 1.0


@translation("typical_p")
def typical_p(fields: Any, _: ModelCard) -> float:
    """Use 1, which is off, if it is not between 0 and 1."""
    value = fields.typical_p or 1.0
    return value if 0 < value < 1 else 1.0


@translation("repetition_penalty")
def repetition_penalty(fields: Any, _: ModelCard) -> float:
    """Use 1, which is off, if it is 0 or less."""
    value = 1.0 if fields.repetition_penalty is None else fields.repetition_penalty
    return value if 0 < value < float("inf") else 1.0


@translation("max_new_tokens", to="max_tokens")
def max_tokens(fields: Any, _: ModelCard) -> int:
    """Use at least 1; 300 by default."""
    count = fields.max_new_tokens
    return min(max(1, DEFAULT_MAX_NEW_TOKENS if count is None else count), _MAX_TOKENS)


@translation("seed")
def seed(fields: Any, _: ModelCard) -> int | None:
    """Take modulo 2**64; 0 is no seed."""
    value: int = fields.seed or 0
    return value % (1 << 64) if value else None


@translation("stop")
def stop(fields: Any, _: ModelCard) -> list[str]:
    """Drop empty texts."""
    return [text for text in fields.stop or () if text]


@translation("stop", to="include_stop")
def include_stop(fields: Any, _: ModelCard) -> bool:
    """Keep the text in the answer."""
    return True


@translation("top_n_tokens", to="logprobs")
def logprobs(fields: Any, _: ModelCard) -> int:
    """Use at least 0, at most 64."""
    return min(max(fields.top_n_tokens or 0, 0), MAX_LOGPROBS)


@translation("truncate")
def truncate(fields: Any, card: ModelCard) -> int | None:
    """Make room for the answer if true; a number is that of the tokens kept at the end."""
    if fields.truncate is True:
        room: int = card.max_model_len - max_tokens.make(fields, card)
        return max(1, room)
    count: int = fields.truncate or 0
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
