"""The nouns of text generation: how to sample, why a text ended, what one token's reply holds.

Plain frozen data shared by front ends, the offline interface and the engine; knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.errors import InvalidField

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

    Greedy if `temperature` is 0.  The order is: penalties and biases, bans (bad words, minimum
    length, allowed tokens, grammar), top_n_sigma, top_k, temperature, top_p, min_p, typical_p, XTC.
    The same seed gives the same tokens, whatever else is in the batch.

    Raises InvalidField naming the parameter, what was given and what is accepted.
    """

    max_tokens: int | None = param(
        16,
        "most tokens of an answer; None: up to the end of the context",
        at_least=1,
        ollama="num_predict",
        tgi="max_new_tokens",
        llm_serving="max_new_tokens",
    )
    min_tokens: int = param(0, "end tokens and stops are ignored before this many", at_least=0)
    n: int = param(
        1,
        "answers to one prompt, which share its cache",
        at_least=1,
        at_most=MAX_SEQUENCES,
        anthropic=None,
        ollama=None,
        tgi=None,
        llm_serving=None,
    )
    temperature: float = param(
        1.0, "divides the logits; 0 takes the likeliest token", at_least=0.0, at_most=100.0
    )
    top_k: int = param(0, "keep this many of the likeliest tokens; 0 keeps all", at_least=0)
    top_p: float = param(
        1.0, "keep the likeliest tokens that hold this probability", over=0.0, at_most=1.0
    )
    min_p: float = param(
        0.0,
        "keep tokens with at least this share of the likeliest one's probability",
        at_least=0.0,
        at_most=1.0,
    )
    typical_p: float = param(
        1.0,
        "keep the tokens of most typical surprise that hold this probability",
        over=0.0,
        at_most=1.0,
    )
    top_n_sigma: float = param(
        0.0,
        "keep tokens whose logit is at most this many standard deviations below the largest; 0 "
        "keeps all",
        at_least=0.0,
    )
    xtc_probability: float = param(
        0.0, "how often the likeliest tokens are excluded (XTC)", at_least=0.0, at_most=1.0
    )
    xtc_threshold: float = param(
        0.1,
        "XTC excludes all tokens of at least this probability but the least likely of them",
        over=0.0,
        at_most=0.5,
    )
    repetition_penalty: float = param(
        1.0,
        "divides positive logits of tokens of prompt and answer; 1 is none",
        at_least=0.01,
        at_most=100.0,
        ollama="repeat_penalty",
    )
    frequency_penalty: float = param(
        0.0, "subtracted for each time a token is in the answer", at_least=-2.0, at_most=2.0
    )
    presence_penalty: float = param(
        0.0, "subtracted from tokens that are in the answer", at_least=-2.0, at_most=2.0
    )
    logit_bias: Mapping[int, float] = param({}, "added to the logits of tokens, by token id")
    stop: Sequence[str] = param(
        (),
        "texts that end the answer, and are not part of it",
        at_most=MAX_STOPS,
        anthropic="stop_sequences",
    )
    stop_token_ids: Sequence[int] = param((), "tokens that end the answer, besides the model's own")
    include_stop: bool = param(
        False,
        "a stop text stays in the answer",
        openai="include_stop_str_in_output",
        anthropic=None,
        ollama=None,
        tgi=None,
        llm_serving=None,
    )
    ignore_eos: bool = param(False, "go on after the model's own end tokens")
    bad_words: Sequence[str] = param((), "texts that must not be in the answer", at_most=MAX_STOPS)
    seed: int | None = param(
        None, "of the random numbers; None: a random one", at_least=0, at_most=2**64 - 1
    )
    logprobs: int | None = param(
        None,
        "likeliest tokens that are reported besides each token; None: no log-probabilities",
        at_least=0,
        at_most=MAX_LOGPROBS,
        anthropic=None,
        ollama=None,
        tgi="top_n_tokens",
        llm_serving="top_n_tokens",
    )
    prompt_logprobs: int | None = param(
        None,
        "the same for the tokens of the prompt",
        at_least=0,
        at_most=MAX_LOGPROBS,
        openai=None,
        anthropic=None,
        ollama=None,
        tgi=None,
        llm_serving=None,
    )
    allowed_token_ids: Sequence[int] | None = param(None, "no other tokens are chosen; None: all")
    skip_special_tokens: bool = param(True, "special tokens are left out of the text")

    def __post_init__(self) -> None:
        for name, row in SAMPLING.items():
            row.check(getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidField(
                "min_tokens",
                f"is {self.min_tokens}, expected at most max_tokens={self.max_tokens}",
            )


SAMPLING = rows_of(SamplingParams)
"""The table of sampling parameters: a row for each field of `SamplingParams`."""

if SamplingParams.__doc__:  # there is none with python -OO
    SamplingParams.__doc__ += "\n    Args:\n"
    rows = SAMPLING.values()
    SamplingParams.__doc__ += "".join(f"        {row.name}: {row.meaning}.\n" for row in rows)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability and rank (0: the likeliest) before temperature and filters."""

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
    num_cached_tokens: int = 0  # of the prompt, found in the cache; given with the finish reason
    blames_request: bool = False  # for ERROR: its parameters or its grammar are the cause
    num_draft_tokens: int = 0  # draft tokens verified, given with the finish reason
    num_accepted_tokens: int = 0  # how many of them were accepted


def join(parts: Sequence[Generated]) -> Generated:
    """What `parts`, one after another, add to the sequence together."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    logprobs = [entry for part in parts for entry in part.logprobs or ()]
    return Generated(
        last.index,
        tuple(token for part in parts for token in part.token_ids),
        "".join([part.text for part in parts]),
        None if all(part.logprobs is None for part in parts) else tuple(logprobs),
        last.finish_reason,
        last.stop_reason,
        max(part.num_cached_tokens for part in parts),
        last.blames_request,
        last.num_draft_tokens,
        last.num_accepted_tokens,
    )
