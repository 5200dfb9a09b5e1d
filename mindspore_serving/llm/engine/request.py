"""Requests to an engine, checked once when they are made."""

import operator
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.beams import BeamSearch
from mindspore_serving.llm.engine.thinking import ThinkingLimit
from mindspore_serving.llm.grammar.compiler import CompiledGrammar
from mindspore_serving.llm.sampling.edits import SampleRow, check_ids
from mindspore_serving.llm.step import EncodingRunner, Runner
from mindspore_serving.llm.tokenization.stopping import Detokenizer, StopChecker
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_GOLDEN = 0x9E3779B97F4A7C15  # the increment of splitmix64
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Encoding:
    """Limits and fixed tokens of a model whose prompts an encoder reads; see `EncodingRunner`."""

    max_prompt_len: int
    max_answer_len: int
    answer_start: tuple[int, ...]
    answer_end: int | None
    bad_words: tuple[tuple[int, ...], ...]
    max_beams: int

    def start_ids(self, target: int | None, end_ids: Collection[int]) -> tuple[int, ...]:
        """Return the first tokens of the decoder, with the token of a language, if any.

        It replaces the last one, unless there is only an end token, as of M2M100.
        """
        if target is None:
            return self.answer_start
        is_alone = len(self.answer_start) == 1 and self.answer_start[0] in end_ids
        return (*(self.answer_start if is_alone else self.answer_start[:-1]), target)

    @classmethod
    def of(cls, runner: Runner) -> "Encoding | None":
        """Return those of `runner`; None if it has no encoder."""
        if not getattr(runner, "answer_start", ()):
            return None
        encoding = cast(EncodingRunner, runner)
        return cls(
            encoding.max_prompt_len,
            encoding.max_answer_len,
            encoding.answer_start,
            encoding.answer_end,
            encoding.bad_words,
            runner.num_blocks,
        )


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a model and its cache that a request has to keep."""

    vocab_size: int
    max_model_len: int  # tokens of a prompt and its answer
    adapters: Collection[int]
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    encoding: Encoding | None = None

    @property
    def max_prompt_len(self) -> int:
        """Maximum number of tokens of a prompt, with room for one of an answer."""
        longest = self.max_model_len - 1
        return longest if self.encoding is None else min(longest, self.encoding.max_prompt_len)

    def room(self, num_tokens: int, num_first: int = 0) -> int:
        """Return how many tokens an answer to a prompt of `num_tokens` may have.

        `num_first` are those of a decoder before the answer.
        """
        room = self.max_model_len - num_tokens
        if self.encoding is None:
            return room
        longest = self.encoding.max_answer_len + len(self.encoding.answer_start)
        return min(room, longest - num_first)

    def fixed(self, target: int | None) -> tuple[tuple[int, ...], list[list[int]]]:
        """Return the tokens before an answer in the language `target`, and words it never has."""
        if self.encoding is None:
            return (), []
        bad_words = [list(word) for word in self.encoding.bad_words]
        return self.encoding.start_ids(target, self.eos_ids), bad_words


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A prompt and the sampling of its `n` completions."""

    request_id: str
    params: SamplingParams
    prompt_ids: list[int]
    max_tokens: int  # of each completion, within `max_model_len`
    seed: int
    eos_ids: tuple[int, ...]
    bad_words_ids: list[list[int]]
    tokenizer: Tokenizer | None
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: int = 0
    grammar: CompiledGrammar | None = None  # of each completion
    thinking: ThinkingLimit | None = None  # of each completion
    continues: bool = False
    open: set[int] = field(init=False)  # indices of the completions that are not finished
    num_to_fork: int = field(init=False)  # completions that begin when the prompt is computed
    encoding: Encoding | None = None  # of a model with an encoder
    start_ids: tuple[int, ...] = ()  # tokens of its decoder before the answer
    num_scored: int = 0  # tokens of the prompt whose log-probabilities were returned

    def __post_init__(self) -> None:
        self.open = set(range(self.params.n))
        self.num_to_fork = self.params.n - 1

    @property
    def context_ids(self) -> list[int]:
        """Tokens that answers continue and penalties count; an encoder's prompt is not."""
        return self.prompt_ids if self.encoding is None else []

    @property
    def needs_scores(self) -> bool:
        """True if log-probabilities of the prompt are requested and not all returned yet."""
        is_requested = self.params.prompt_logprobs is not None
        return is_requested and self.num_scored < len(self.prompt_ids)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        eos_ids = () if self.params.ignore_eos else self.eos_ids
        return (*eos_ids, *self.params.stop_token_ids)

    def begin_row(self, index: int, output_ids: Sequence[int] = ()) -> SampleRow:
        """Return the row to sample completion `index` from, behind `output_ids`."""
        end = None if self.encoding is None else self.encoding.answer_end
        return SampleRow(
            params=self.params,
            prompt_ids=self.context_ids,
            output_ids=output_ids,
            end_ids=self.end_ids,
            position=len(output_ids),
            seed=self.seed_of(index),
            bad_words_ids=self.bad_words_ids,
            token_bytes=self.tokenizer.token_bytes if self.tokenizer else None,
            forced=end if len(output_ids) == self.max_tokens - 1 else None,
            start_ids=self.start_ids,
        )

    def begin_search(self) -> BeamSearch | None:
        """Return the beam search; None if there is none."""
        if self.params.num_beams == 1:
            return None
        return BeamSearch(
            self.params,
            end_ids=self.end_ids,
            max_tokens=self.max_tokens,
            num_forced=len(self.start_ids) - 1,
            edits_of=partial(self.begin_row, 0),
        )

    def begin_text(self, index: int) -> StopChecker:
        """Return the checker that turns the tokens of completion `index` into text and ends it."""
        decoding = None
        if self.tokenizer is not None:
            skips = self.params.skip_special_tokens
            decoding = Detokenizer(self.tokenizer, skips, continues=self.continues)
        return StopChecker(self.params, self.eos_ids, decoding, self.max_tokens, index=index)

    def seed_of(self, index: int) -> int:
        """Return the seed of a completion: the request's for the first, a mixed one for each other.

        Mixed by splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014),
        so that the seeds of neighbours have nothing in common.
        """
        if index == 0:
            return self.seed
        mixed = (self.seed + index * _GOLDEN) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)


def make_request(
    request_id: str,
    prompt_ids: Iterable[int],
    params: SamplingParams,
    limits: ModelLimits,
    *,
    priority: int = 0,
    tenant: str = "",
    cache_salt: str = "",
    adapter: int = 0,
    grammar: CompiledGrammar | None = None,
    thinking: ThinkingLimit | None = None,
    continues: bool = False,
    bad_words_ids: list[list[int]] | None = None,
    target: int | None = None,
) -> GenerationRequest:
    """Return a request that keeps `limits`.

    A missing seed is drawn.  Lower `priority` runs first, equals in turns of their tenants.  Only
    requests with the same `cache_salt` share cached prompts.  `adapter` is the number of a LoRA
    adapter, 0 for none.  Each completion follows `grammar`, and ends with STOP when that is
    complete; its reasoning keeps the limit `thinking`.  With `continues` the text continues that of
    the prompt, and may begin with a space.  `bad_words_ids` are the tokens of `params.bad_words`,
    if they are encoded already, `target` the token of the answer's language.

    Raises InvalidInputs naming what is wrong and what is accepted.
    """
    if not isinstance(request_id, str) or not request_id:
        raise InvalidInputs(f"request_id is {request_id!r}, expected a non-empty string")
    if not isinstance(params, SamplingParams):
        raise InvalidInputs(f"params is {type(params).__name__}, expected SamplingParams")
    prompt = check_generation_prompt(prompt_ids, limits)
    _check_params(params, limits)
    _check_scope(priority, cache_salt, adapter, limits)
    if grammar is not None:
        _check_grammar(grammar, limits)
    _check_beams(params, limits, is_free=grammar is None and thinking is None)
    if bad_words_ids is None:
        bad_words_ids = _bad_words_ids(params, limits.tokenizer)
    start_ids, banned = limits.fixed(target)
    room = limits.room(len(prompt), len(start_ids))
    return GenerationRequest(
        request_id=request_id,
        params=params,
        prompt_ids=prompt,
        max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
        seed=secrets.randbits(64) if params.seed is None else params.seed,
        eos_ids=limits.eos_ids,
        bad_words_ids=[*bad_words_ids, *banned],
        tokenizer=limits.tokenizer,
        priority=priority,
        tenant=tenant,
        cache_salt=cache_salt,
        adapter=adapter,
        grammar=grammar,
        thinking=thinking,
        continues=continues,
        encoding=limits.encoding,
        start_ids=start_ids,
    )


def to_token_ids(prompt: Iterable[int]) -> list[int]:
    """Return the integers of `prompt` as a list.  Raises InvalidInputs for any other type."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise InvalidInputs(f"the prompt is not a list of token ids: {error}") from None


def _check_params(params: SamplingParams, limits: ModelLimits) -> None:
    check_ids(params, limits.vocab_size)
    if limits.encoding is not None and params.prompt_logprobs is not None:
        raise InvalidField(
            "prompt_logprobs", "is set, expected none: an encoder reads the prompts of this model"
        )


def _check_beams(params: SamplingParams, limits: ModelLimits, *, is_free: bool) -> None:
    if params.num_beams == 1:
        return
    if limits.encoding is None:
        accepted = "1: servers search answers of models with an encoder, LLM.beam_search of others"
    elif params.num_beams > limits.encoding.max_beams:
        accepted = (
            f"at most {limits.encoding.max_beams}: so many answers have room at once "
            "(max_num_seqs, kv_cache_memory)"
        )
    elif not is_free:
        accepted = "1 with a grammar or a limit of the reasoning"
    else:
        return
    raise InvalidField("num_beams", f"is {params.num_beams}, expected {accepted}")


def _check_scope(priority: int, cache_salt: str, adapter: int, limits: ModelLimits) -> None:
    if not _is_int(priority):
        raise InvalidInputs(f"priority is {priority!r}, expected an int")
    if not isinstance(cache_salt, str):
        raise InvalidInputs(f"cache_salt is {cache_salt!r}, expected a string")
    if not _is_int(adapter) or (adapter and adapter not in limits.adapters):
        numbers = ", ".join(map(str, sorted(limits.adapters)))
        accepted = f"0 or one of {numbers}" if numbers else "0: no adapter is loaded"
        raise InvalidInputs(f"adapter is {adapter!r}, expected {accepted}")


def _check_grammar(grammar: CompiledGrammar, limits: ModelLimits) -> None:
    if not isinstance(grammar, CompiledGrammar):
        raise InvalidInputs(f"grammar is {type(grammar).__name__}, expected a CompiledGrammar")
    if grammar.vocab_size != limits.vocab_size:
        raise InvalidInputs(
            f"the grammar was compiled for a vocabulary of {grammar.vocab_size} tokens, expected "
            f"{limits.vocab_size}"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_generation_prompt(prompt_ids: Iterable[int], limits: ModelLimits) -> list[int]:
    """Check a prompt as `check_prompt` does, with room for one token of an answer."""
    limit = limits.max_model_len
    reason = f": prompt and answer together have at most {limit} (max_model_len)"
    if limits.max_prompt_len < limit - 1:
        reason = " of the encoder"
    return check_prompt(prompt_ids, limits.vocab_size, limits.max_prompt_len, reason)


def check_prompt(
    prompt_ids: Iterable[int], vocab_size: int, limit: int, reason: str = " (max_model_len)"
) -> list[int]:
    """Return the prompt as a list.

    Raises InvalidInputs if it is empty, has over `limit` tokens, or an id that is out of range.
    """
    prompt = to_token_ids(prompt_ids)
    if not prompt:
        raise InvalidInputs("the prompt is empty, expected at least one token")
    if len(prompt) > limit:
        raise InvalidInputs(
            f"the prompt has {len(prompt)} tokens, expected at most {limit}{reason}"
        )
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        raise InvalidInputs(
            f"the prompt has token id {low if low < 0 else high}, expected ids from 0 to "
            f"{vocab_size - 1}"
        )
    return prompt


def _bad_words_ids(params: SamplingParams, tokenizer: Tokenizer | None) -> list[list[int]]:
    if tokenizer is not None:
        return tokenizer.encode_words(params.bad_words)
    for name, texts in (("stop", params.stop), ("bad_words", params.bad_words)):
        if texts:
            raise InvalidField(name, "needs a tokenizer, but the model has no tokenizer.json")
    return []


def check_room(config: EngineConfig, noun: str, count: int, queued: int, new: int) -> None:
    """Raise Overloaded if `new` tokens may not wait beside `count` requests of `queued` tokens."""
    limit = config.max_num_waiting
    if limit is not None and count >= limit:
        raise Overloaded(f"{count} {noun} wait already, at most {limit} may; try again")
    limit = config.max_num_waiting_tokens
    if limit is not None and count and queued + new > limit:
        raise Overloaded(
            f"{noun} with {queued} tokens wait already, at most {limit} may; try again"
        )
