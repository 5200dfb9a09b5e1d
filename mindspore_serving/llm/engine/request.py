"""A request to an engine, checked when it is made and not again."""

import operator
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.grammar.compiler import CompiledGrammar
from mindspore_serving.llm.sampling.edits import check_ids
from mindspore_serving.llm.tokenization.stopping import Detokenizer, StopChecker
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_GOLDEN = 0x9E3779B97F4A7C15  # of splitmix64
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model and its cache have room for."""

    vocab_size: int
    max_model_len: int  # tokens of a prompt and its answer
    adapters: Collection[int]
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer | None


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A prompt, and how its `n` answers are to be sampled."""

    request_id: str
    params: SamplingParams
    prompt_ids: list[int]
    max_tokens: int  # of each answer, within the context
    seed: int
    eos_ids: tuple[int, ...]
    bad_words_ids: list[list[int]]
    tokenizer: Tokenizer | None
    priority: int = 0
    cache_salt: str = ""
    adapter: int = 0
    grammar: CompiledGrammar | None = None  # of each answer
    continues: bool = False
    open: set[int] = field(init=False)  # the answers that are not finished, by index
    num_to_fork: int = field(init=False)  # pending answers, which begin when the prompt is computed
    num_scored: int = 0  # tokens of the prompt whose log-probabilities were given

    def __post_init__(self) -> None:
        self.open = set(range(self.params.n))
        self.num_to_fork = self.params.n - 1

    @property
    def is_to_score(self) -> bool:
        """Whether log-probabilities of the prompt are wanted and not all given yet."""
        is_wanted = self.params.prompt_logprobs is not None
        return is_wanted and self.num_scored < len(self.prompt_ids)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        own = () if self.params.ignore_eos else self.eos_ids
        return (*own, *self.params.stop_token_ids)

    def begin_text(self, index: int) -> StopChecker:
        """What makes the text of answer `index` of its tokens, and ends it."""
        decoding = None
        if self.tokenizer is not None:
            skips = self.params.skip_special_tokens
            decoding = Detokenizer(self.tokenizer, skips, continues=self.continues)
        return StopChecker(self.params, self.eos_ids, decoding, self.max_tokens, index=index)

    def seed_of(self, index: int) -> int:
        """An answer's seed: the request's own for the first, far apart for the others."""
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
    cache_salt: str = "",
    adapter: int = 0,
    grammar: CompiledGrammar | None = None,
    continues: bool = False,
    bad_words_ids: list[list[int]] | None = None,
) -> GenerationRequest:
    """A request within `limits`.  A missing seed is drawn.

    Lower `priority` runs first, equals in order of arrival.  Only requests with the same
    `cache_salt` share cached prompts.  `adapter` is a LoRA adapter's number, 0 for none.  Each
    answer follows `grammar`, and ends with STOP when that is complete.  With `continues` the text
    goes on behind the prompt's, and may begin with a space.  `bad_words_ids` are
    `params.bad_words` as tokens, if that was done before.

    Raises InvalidInputs naming what is wrong and what is accepted.
    """
    if not isinstance(request_id, str) or not request_id:
        raise InvalidInputs(f"request_id is {request_id!r}, expected a text that is not empty")
    if not isinstance(params, SamplingParams):
        raise InvalidInputs(f"params is {type(params).__name__}, expected SamplingParams")
    prompt = check_generation_prompt(prompt_ids, limits)
    check_ids(params, limits.vocab_size)
    _check_place(priority, cache_salt, adapter, limits)
    if grammar is not None:
        _check_grammar(grammar, limits)
    if bad_words_ids is None:
        bad_words_ids = _bad_words_ids(params, limits.tokenizer)
    room = limits.max_model_len - len(prompt)
    return GenerationRequest(
        request_id=request_id,
        params=params,
        prompt_ids=prompt,
        max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
        seed=secrets.randbits(64) if params.seed is None else params.seed,
        eos_ids=limits.eos_ids,
        bad_words_ids=bad_words_ids,
        tokenizer=limits.tokenizer,
        priority=priority,
        cache_salt=cache_salt,
        adapter=adapter,
        grammar=grammar,
        continues=continues,
    )


def to_token_ids(prompt: Iterable[int]) -> list[int]:
    """Ints of any kind as a list.  Raises InvalidInputs for anything else."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise InvalidInputs(f"the prompt is not a list of token ids: {error}") from None


def _check_place(priority: int, cache_salt: str, adapter: int, limits: ModelLimits) -> None:
    if not _is_int(priority):
        raise InvalidInputs(f"priority is {priority!r}, expected an int")
    if not isinstance(cache_salt, str):
        raise InvalidInputs(f"cache_salt is {cache_salt!r}, expected a text")
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
    """As `check_prompt`, leaving room for one token of an answer."""
    most = limits.max_model_len
    room = f": prompt and answer have room for {most} (max_model_len)"
    return check_prompt(prompt_ids, limits.vocab_size, most - 1, room)


def check_prompt(
    prompt_ids: Iterable[int], vocab_size: int, most: int, why: str = " (max_model_len)"
) -> list[int]:
    """The prompt as a list.  Raises InvalidInputs: empty, over `most`, an id out of range."""
    prompt = to_token_ids(prompt_ids)
    if not prompt:
        raise InvalidInputs("the prompt is empty, expected at least one token")
    if len(prompt) > most:
        raise InvalidInputs(f"the prompt has {len(prompt)} tokens, expected at most {most}{why}")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        raise InvalidInputs(
            f"the prompt has token id {low if low < 0 else high}, expected ids of 0 to "
            f"{vocab_size - 1}"
        )
    return prompt


def _bad_words_ids(params: SamplingParams, tokenizer: Tokenizer | None) -> list[list[int]]:
    if tokenizer is not None:
        return tokenizer.encode_words(params.bad_words)
    for name, texts in (("stop", params.stop), ("bad_words", params.bad_words)):
        if texts:
            raise InvalidField(name, "needs the model's tokenizer, which is not there")
    return []
