"""Sampling parameters, finish reasons, and the result of a step for one sequence.

Plain frozen data shared by front ends, the offline interface and the engine; knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.errors import InvalidField

MAX_SEQUENCES = 128  # limit of `n`
MAX_LOGPROBS = 64
MAX_STOPS = 64
MAX_BEAMS = 32
_NO_BEAMS: Any = dict.fromkeys(("anthropic", "ollama", "llamacpp", "llm_serving", "gemini"))


class FinishReason(Enum):
    """Reason for which a sequence ended."""

    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # the client disconnected, or the caller cancelled
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request; every sequence of a batch has its own.

    Greedy if `temperature` is 0. The order is: penalties, DRY, biases, bans (bad words, minimum
    length, allowed tokens, grammar), top_n_sigma, top_k, temperature, top_p, min_p, typical_p, XTC;
    Mirostat replaces all from top_n_sigma on but temperature. The same seed gives the same tokens,
    whatever else is in the batch.

    Raises InvalidField naming the parameter, its value and what is accepted.
    """

    max_tokens: int | None = param(
        16,
        "max tokens of an answer; None: up to the end of the context",
        at_least=1,
        ollama="num_predict",
        llamacpp="n_predict",
        tgi="max_new_tokens",
        llm_serving="max_new_tokens",
        gemini="maxOutputTokens",
    )
    min_tokens: int = param(
        0, "tokens before which end tokens and stop texts are ignored", at_least=0
    )
    n: int = param(
        1,
        "answers to one prompt, which share its cache",
        at_least=1,
        at_most=MAX_SEQUENCES,
        anthropic=None,
        ollama=None,
        llamacpp=None,
        tgi=None,
        llm_serving=None,
        gemini="candidateCount",
    )
    temperature: float = param(
        1.0, "divisor of the logits; 0 takes the likeliest token", at_least=0.0, at_most=100.0
    )
    top_k: int = param(
        0,
        "keep this many of the likeliest tokens; 0 keeps all",
        at_least=0,
        gemini="topK",
    )
    top_p: float = param(
        1.0,
        "keep the likeliest tokens whose probabilities add up to this",
        over=0.0,
        at_most=1.0,
        gemini="topP",
    )
    min_p: float = param(
        0.0,
        "keep tokens with at least this share of the largest probability",
        at_least=0.0,
        at_most=1.0,
    )
    typical_p: float = param(
        1.0,
        "keep the tokens of most typical information whose probabilities add up to this",
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
        0.0,
        "probability with which the likeliest tokens are excluded (XTC)",
        at_least=0.0,
        at_most=1.0,
    )
    xtc_threshold: float = param(
        0.1,
        "XTC excludes the tokens of at least this probability, except the least likely of them",
        over=0.0,
        at_most=0.5,
    )
    mirostat: int = param(
        0,
        "version of Mirostat, which takes the place of the filters; 0: none",
        at_least=0,
        at_most=2,
    )
    mirostat_tau: float = param(
        5.0, "surprise of a token, in bits, that Mirostat aims at", at_least=0.0, at_most=100.0
    )
    mirostat_eta: float = param(
        0.1, "share of an error of the surprise that Mirostat corrects", at_least=0.0, at_most=1.0
    )
    repetition_penalty: float = param(
        1.0,
        "divisor of positive logits of tokens in prompt and answer; 1 has no effect",
        at_least=0.01,
        at_most=100.0,
        ollama="repeat_penalty",
        llamacpp="repeat_penalty",
    )
    frequency_penalty: float = param(
        0.0,
        "subtracted from a token's logit for each time it is in the answer",
        at_least=-2.0,
        at_most=2.0,
        gemini="frequencyPenalty",
    )
    presence_penalty: float = param(
        0.0,
        "subtracted from the logits of tokens that are in the answer",
        at_least=-2.0,
        at_most=2.0,
        gemini="presencePenalty",
    )
    no_repeat_ngram_size: int = param(
        0,
        "length of sequences of tokens that may come once only; 0: no limit",
        at_least=0,
        at_most=1024,
        **_NO_BEAMS,
    )
    num_beams: int = param(
        1,
        "answers that a beam search follows, of models with an encoder; 1: no search",
        at_least=1,
        at_most=MAX_BEAMS,
        **_NO_BEAMS,
    )
    length_penalty: float = param(
        1.0,
        "power of an answer's length that divides its score in a beam search",
        at_least=-10.0,
        at_most=10.0,
        **_NO_BEAMS,
    )
    early_stopping: bool = param(
        False, "end a beam search as soon as it has as many answers as beams", **_NO_BEAMS
    )
    dry_multiplier: float = param(
        0.0,
        "penalty of a token that repeats a sequence of the allowed length (DRY); 0 is none",
        at_least=0.0,
        at_most=100.0,
    )
    dry_base: float = param(
        1.75, "growth of the DRY penalty with each further token", at_least=1.0, at_most=10.0
    )
    dry_allowed_length: int = param(
        2, "length of a repeated sequence from which on it has the DRY penalty", at_least=1
    )
    dry_penalty_last_n: int = param(
        -1, "tokens at the end of the text in which DRY finds repetitions; -1: all", at_least=-1
    )
    dry_sequence_breakers: Sequence[str] = param(
        ("\n", ":", '"', "*"),
        "texts at whose tokens a sequence of DRY ends",
        at_most=MAX_STOPS,
    )
    logit_bias: Mapping[int, float] = param({}, "added to the logits of tokens, by token id")
    text_bias: Mapping[str, float] = param(
        {}, "added to the logits of each token of a text, by text"
    )
    stop: Sequence[str] = param(
        (),
        "texts that end the answer, which does not contain them",
        at_most=MAX_STOPS,
        anthropic="stop_sequences",
        gemini="stopSequences",
    )
    stop_token_ids: Sequence[int] = param((), "tokens that end the answer, besides the model's own")
    include_stop: bool = param(
        False,
        "keep the stop text in the answer",
        openai="include_stop_str_in_output",
        anthropic=None,
        ollama=None,
        llamacpp=None,
        tgi=None,
        llm_serving=None,
        gemini=None,
    )
    ignore_eos: bool = param(False, "continue after the model's end tokens")
    bad_words: Sequence[str] = param((), "texts that must not be in the answer", at_most=MAX_STOPS)
    seed: int | None = param(
        None, "seed of the random numbers; None: a random seed", at_least=0, at_most=2**64 - 1
    )
    logprobs: int | None = param(
        None,
        "number of likeliest tokens reported with each token; None: no log-probabilities",
        at_least=0,
        at_most=MAX_LOGPROBS,
        anthropic=None,
        ollama=None,
        llamacpp="n_probs",
        tgi="top_n_tokens",
        llm_serving="top_n_tokens",
        gemini="logprobs",
    )
    prompt_logprobs: int | None = param(
        None,
        "the same for the tokens of the prompt",
        at_least=0,
        at_most=MAX_LOGPROBS,
        openai=None,
        anthropic=None,
        ollama=None,
        llamacpp=None,
        tgi=None,
        llm_serving=None,
        gemini=None,
    )
    allowed_token_ids: Sequence[int] | None = param(
        None, "the only tokens that are chosen; None: all"
    )
    skip_special_tokens: bool = param(True, "leave special tokens out of the text")
    thinking_token_budget: int | None = param(
        None,
        "max tokens of reasoning, which is then ended, behind a sentence if one ends soon before; "
        "None: no limit of its own",
        at_least=0,
        anthropic=None,
        ollama=None,
        llamacpp=None,
        tgi=None,
        llm_serving=None,
        gemini=None,
    )

    def __post_init__(self) -> None:
        for name, row in SAMPLING.items():
            row.check(getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidField(
                "min_tokens",
                f"is {self.min_tokens}, expected at most max_tokens={self.max_tokens}",
            )
        if self.num_beams > 1:
            self._check_beams()

    def _check_beams(self) -> None:
        if self.temperature:
            problem = f"is {self.num_beams}, expected temperature=0 with it: nothing is drawn"
            raise InvalidField("num_beams", problem)
        if self.n > self.num_beams:
            raise InvalidField("n", f"is {self.n}, expected at most num_beams={self.num_beams}")


SAMPLING = rows_of(SamplingParams)
"""Table of sampling parameters: a row for each field of `SamplingParams`."""

if SamplingParams.__doc__:  # None with python -OO
    SamplingParams.__doc__ += "\n    Args:\n"
    rows = SAMPLING.values()
    SamplingParams.__doc__ += "".join(f"        {row.name}: {row.meaning}.\n" for row in rows)


def fill_in(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `values` of a request with `defaults` for those that it leaves out.

    A request that draws its tokens has no beams by default, and one with beams draws none.
    """
    filled = {**defaults, **values}
    if values.get("temperature") and "num_beams" not in values:
        filled.pop("num_beams", None)
    elif values.get("num_beams", 1) > 1 and "temperature" not in values:
        filled["temperature"] = 0.0
    if "min_tokens" not in values and filled.get("min_tokens") and filled.get("max_tokens"):
        filled["min_tokens"] = min(filled["min_tokens"], filled["max_tokens"])
    return filled


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability and rank (0: the likeliest) of a token, before temperature and filters."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens that one step added to one sequence of a request.

    `text` is complete characters, without a possible beginning of a stop string. `logprobs` has,
    for each token, its own first and then the alternatives, best first.
    """

    index: int  # of the sequence, 0 to n-1
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    num_cached_tokens: int = 0  # of the prompt; set with the finish reason
    blames_request: bool = False  # for ERROR: its parameters or grammar are the cause
    num_draft_tokens: int = 0  # tokens that were guessed and computed, given with the finish reason
    num_accepted_tokens: int = 0  # how many of them are in the answer


def join(parts: Sequence[Generated]) -> Generated:
    """Combine consecutive `parts` of a sequence."""
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
