"""The nouns of text generation: how to sample, why a text ended, what one token's reply holds.

Plain frozen data shared by front ends, the offline interface and the engine; knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mindspore_serving.errors import InvalidInputs

MAX_SEQUENCES = 128  # of one request (n)
MAX_LOGPROBS = 64
MAX_STOPS = 64


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # the caller left
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen.  Every sequence of a batch has its own.

    Greedy if `temperature` is 0.  Filters apply in this order: penalties and biases, bans (bad
    words, minimum length, allowed tokens), temperature, top_k, top_p, min_p, typical_p.

    Args:
        max_tokens: most tokens to generate; None up to the model's context.
        min_tokens: end tokens and stops are not taken before so many.
        n: sequences generated for one prompt; they share the prompt's cache.
        temperature: >= 0.
        top_k: 0 takes all.
        top_p, min_p, typical_p: in [0, 1]; 1, 0 and 1 take all.
        repetition_penalty: > 0; 1 is none; applies to prompt and answer.
        frequency_penalty, presence_penalty: -2 to 2; apply to the answer.
        logit_bias: token id to what is added to its logit.
        stop: texts that end the answer, and are cut off unless `include_stop`.
        stop_token_ids: tokens that end it, beside the model's own end tokens.
        ignore_eos: go on after the model's own end tokens.
        bad_words: texts that must not appear.
        seed: the same seed gives the same tokens, whatever else is in the batch.
        logprobs: alternatives reported for each token, besides its own; None for no logprobs.
        prompt_logprobs: the same for the tokens of the prompt.
        allowed_token_ids: nothing else may be chosen.

    Raises InvalidInputs naming the parameter, what was given and what is accepted.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    bad_words: Sequence[str] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_numbers(self)
        _check_texts(self)


def _check_counts(params: SamplingParams) -> None:
    rows: list[tuple[str, int | None, int, int | None]] = [
        ("max_tokens", params.max_tokens, 1, None),
        ("min_tokens", params.min_tokens, 0, None),
        ("n", params.n, 1, MAX_SEQUENCES),
        ("top_k", params.top_k, 0, None),
        ("seed", params.seed, 0, 2**64 - 1),
        ("logprobs", params.logprobs, 0, MAX_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs, 0, MAX_LOGPROBS),
    ]
    for name, value, low, high in rows:
        if value is None and name in ("max_tokens", "seed", "logprobs", "prompt_logprobs"):
            continue
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or value is None or value < low or (high is not None and value > high):
            accepted = f"an int >= {low}" if high is None else f"an int of {low} to {high}"
            raise InvalidInputs(f"{name} is {value!r}, expected {accepted}")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidInputs(
            f"min_tokens is {params.min_tokens}, expected at most max_tokens={params.max_tokens}"
        )


def _check_numbers(params: SamplingParams) -> None:
    infinite = float("inf")
    rows = [
        ("temperature", params.temperature, 0.0, 100.0, True),
        ("top_p", params.top_p, 0.0, 1.0, False),
        ("min_p", params.min_p, 0.0, 1.0, True),
        ("typical_p", params.typical_p, 0.0, 1.0, False),
        ("repetition_penalty", params.repetition_penalty, 0.0, infinite, False),
        ("frequency_penalty", params.frequency_penalty, -2.0, 2.0, True),
        ("presence_penalty", params.presence_penalty, -2.0, 2.0, True),
    ]
    for name, value, low, high, includes_low in rows:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_over = is_number and (value >= low if includes_low else value > low)
        if not (is_over and value <= high and value != infinite):
            first = f"{low:g}" if includes_low else f"over {low:g}"
            raise InvalidInputs(f"{name} is {value!r}, expected a number from {first} to {high:g}")


def _check_texts(params: SamplingParams) -> None:
    for name, texts in (("stop", params.stop), ("bad_words", params.bad_words)):
        if isinstance(texts, str) or not all(isinstance(text, str) and text for text in texts):
            raise InvalidInputs(f"{name} is {texts!r}, expected a list of texts that are not empty")
        if len(texts) > MAX_STOPS:
            raise InvalidInputs(f"{name} has {len(texts)} texts, expected at most {MAX_STOPS}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability and its rank (0 is the likeliest) under the model's own
    distribution, before temperature and filters."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Generated:
    """What one step added to one sequence of a request.

    `text` is what can be shown: never half a character, never the start of a stop string.
    `logprobs` has, for each token, its own first and then the alternatives, best first.
    """

    index: int  # of the sequence, 0 to n-1
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    num_cached_tokens: int = 0  # of the prompt, found in the cache; told with the finish reason
