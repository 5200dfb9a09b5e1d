"""Compilation of grammars for a model's vocabulary, by llguidance.

It takes milliseconds to seconds, so it does not run on the engine's thread; all answers with a
grammar share the result. Knows no requests.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from mindspore_serving.core.json_schema import find_excess
from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.grammar import probing
from mindspore_serving.llm.grammar.deep_stack import call_with_deep_stack
from mindspore_serving.llm.grammar.source import (
    disable_forcing,
    insert_special_tokens,
    is_large,
    whitespace_options,
)
from mindspore_serving.llm.grammar.state import GrammarState, clear_bits
from mindspore_serving.llm.grammar.tokens import TokenTable
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

MAX_SOURCE_BYTES = 512 * 1024  # the deep stack is enough for a chain of rules of this size
MAX_REGEX_BYTES = 64 * 1024
_MAX_CACHED = 64
# Work limits of one mask: on a vocabulary of 100,000 tokens usually under 10 ms.
_STEP_LIMITS = {"step_max_items": 10_000, "max_items_in_row": 500, "step_lexer_fuel": 14_000}
_MAX_LEXER_STATES = 20_000  # 1 to 2 kB each, kept as long as the grammar
_MAX_REASON_CHARS = 500

_REASONS = {  # what llguidance says, and what it means
    "NoExtensionBias": "a rule or $ref leads to nothing but itself",
    "panic:": "it has too many rules, alternatives or properties",
}
_KINDS = ("json_object", "json_schema", "regex", "lark")


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar for one vocabulary.  Threads may share it; each answer has a state of its own."""

    grammar: Grammar
    vocab_size: int  # of the logits
    _eos_ids: tuple[int, ...] = field(repr=False)
    _num_tokens: int = field(repr=False)  # of a mask
    _matcher: Any = field(repr=False)

    def find_slow_step(self) -> str | None:
        """Follow random paths through the grammar; return why a step is too slow, or None."""
        return probing.find_slow_step(self._matcher.deep_copy, self._eos_ids)

    def begin(self, allows_end: bool = True) -> GrammarState:
        """Return the state before the first token.

        Without `allows_end` the end tokens are banned: the answer goes on as long as the grammar
        allows more.
        """
        banned = () if allows_end else self._eos_ids
        return GrammarState(self._matcher.deep_copy(), self._num_tokens, banned)


class GrammarCompiler:
    """Compiles grammars for one model, and caches the latest.  Threads may share it.

    Args:
        tokenizer: of the model; its vocabulary is read at once (about a second for 128,000 tokens).
        vocab_size: of the logits; tokens that the tokenizer does not know are never allowed.
        eos_ids: the tokens that end an answer; may be empty.
        is_trusted: a slow grammar delays only its author. Otherwise llguidance does not look for
            forced tokens, which the model then generates: a forced text may be endless, and so the
            search for it.

    Raises:
        StartError: llguidance is not installed or cannot use the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_ids: Iterable[int] = (),
        *,
        is_trusted: bool = True,
    ) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise StartError(
                f"grammars need llguidance ({error}): install mindspore-serving[llm]"
            ) from None
        self.vocab_size = vocab_size
        self._library = llguidance
        self._table = TokenTable(tokenizer, vocab_size, eos_ids)
        try:
            self._tokenizer = llguidance.LLTokenizer(self._table, eos_token=self._table.eos_ids)
        except Exception as error:
            raise StartError(f"llguidance cannot use the vocabulary: {error}") from error
        self._limits = llguidance._lib.LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False, **_STEP_LIMITS
        )
        self._is_trusted = is_trusted
        self._lock = Lock()
        self._compiled: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()

    def is_cached(self, grammar: Grammar) -> bool:
        """Return whether `grammar` has been compiled and is still cached."""
        return (grammar.kind, grammar.source) in self._compiled

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile `grammar`, or return it from the cache.

        Raises InvalidInputs if it is too large, or with the reason why llguidance refuses it.
        """
        key = (grammar.kind, grammar.source)
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        work = partial(self._compile, grammar)
        compiled = call_with_deep_stack(work, is_slow=is_large(grammar))
        with self._lock:
            self._compiled[key] = compiled
            while len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        _check(grammar)
        try:
            source = self._source(grammar)
            source = source if self._is_trusted else disable_forcing(source)
        except (ValueError, RecursionError) as error:
            raise _refused(grammar, str(error)) from None
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if not matcher.is_error():
            self._check_first_token(grammar, matcher.deep_copy())
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        eos_ids, num_tokens = tuple(self._table.eos_ids), len(self._table.tokens)
        return CompiledGrammar(grammar, self.vocab_size, eos_ids, num_tokens, matcher)

    def _source(self, grammar: Grammar) -> str:
        """Return the source for llguidance.  Raises ValueError for broken JSON."""
        matcher, text = self._library.LLMatcher, grammar.source
        source: str
        if grammar.kind == "lark":
            source = matcher.grammar_from_lark(insert_special_tokens(text, self._table.special_ids))
        elif grammar.kind == "regex":
            source = matcher.grammar_from_regex(text)
        else:
            text = text if grammar.kind == "json_schema" else '{"type": "object"}'
            text = "{}" if text.strip() == "true" else text
            source = matcher.grammar_from_json_schema(text, defaults=whitespace_options(text))
        return source

    def _check_first_token(self, grammar: Grammar, probe: Any) -> None:
        """Raise InvalidInputs unless an answer has a first token within llguidance's limits."""
        allowed = np.frombuffer(probe.compute_bitmask(), np.uint32)[None].copy()
        if probe.is_error():
            raise _refused(grammar, probe.get_error())
        clear_bits(allowed, self._table.eos_ids)
        if not allowed.any():
            only = "only the empty answer" if probe.is_accepting() else "no answer at all"
            raise _refused(grammar, f"it allows {only} in this model's vocabulary")


def _check(grammar: Grammar) -> None:
    if grammar.kind not in _KINDS:
        raise InvalidInputs(
            f"the kind of a grammar is {grammar.kind!r}, expected {', '.join(_KINDS)}"
        )
    size = len(grammar.source.encode("utf-8", "replace"))
    limit = MAX_REGEX_BYTES if grammar.kind == "regex" else MAX_SOURCE_BYTES
    if size > limit:
        raise InvalidInputs(f"the {grammar.kind} has {size} bytes, expected at most {limit}")
    if grammar.kind != "json_object" and not grammar.source:
        raise InvalidInputs(f"the {grammar.kind} is empty")
    if grammar.kind == "json_schema" and (excess := _find_excess(grammar.source)):
        raise InvalidInputs(f"the json_schema {excess}")


def _find_excess(schema: str) -> str | None:
    try:
        return find_excess(json.loads(schema))
    except (ValueError, RecursionError):
        return None  # the compiler says what is wrong


def _refused(grammar: Grammar, reason: str) -> InvalidInputs:
    reason = reason.replace("<non-verbose/>", "").strip()
    reason = next((text for sign, text in _REASONS.items() if reason.startswith(sign)), reason)
    if len(reason) > _MAX_REASON_CHARS:
        reason = reason[:_MAX_REASON_CHARS] + " ..."
    return InvalidInputs(f"the {grammar.kind} cannot be used: {reason}")
