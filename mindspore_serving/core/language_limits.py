"""Limits of a request to a language model, and their check: a field of `LanguageLimits` each.

It knows no protocol and no model.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Generate, LLMRequest, Tokenize
from mindspore_serving.core.params import param, rows_of
from mindspore_serving.core.reading_messages import Embed, Score
from mindspore_serving.errors import InvalidField


@dataclass(frozen=True, slots=True)
class LanguageLimits:
    """Limits of requests to the language models of one server.

    Raises InvalidField naming the limit, its value and what is accepted.
    """

    max_body: int = param(
        8 << 20, "size of a body; a larger one is answered 413 before it is read", at_least=1024
    )
    max_values: int = param(
        1 << 19,
        "JSON values in a body, counted before it is decoded: texts, numbers, lists and objects "
        "at any depth, so also token ids",
        at_least=1024,
    )
    max_objects: int = param(
        1 << 14, "JSON objects in a body, counted before it is decoded", at_least=64
    )
    max_depth: int = param(128, "depth of nested lists and objects", at_least=8, at_most=200)
    max_messages: int = param(2048, "messages of a conversation", at_least=1)
    max_tools: int = param(128, "tools", at_least=0)
    max_prompts: int = param(2048, "texts to embed or score in one request", at_least=1)
    max_pairs_length: int = param(
        16 << 20,
        "characters of all texts to score in one request; a query counts for each of its documents",
        at_least=1024,
    )
    max_grammar: int = param(1 << 19, "characters of a JSON schema, regex or grammar", at_least=64)
    max_stop_length: int = param(4096, "characters of all stop texts together", at_least=1)
    max_bad_words_length: int = param(
        4096, "characters of all bad words, and of all texts with a bias", at_least=1
    )
    max_bias: int = param(1024, "tokens with a `logit_bias`", at_least=0)
    max_stop_ids: int = param(1024, "stop tokens", at_least=0)
    max_stored: int = param(
        256,
        "stored responses of OpenAI's API per API key, or of all clients without a key; the "
        "oldest is dropped; likewise conversations",
        at_least=0,
    )
    max_stored_bytes: int = param(
        32 << 20,
        "size of these responses, and of these conversations; the oldest is dropped",
        at_least=0,
    )
    max_stored_days: int = param(
        30, "days until what is stored is removed", at_least=1, at_most=3650
    )
    max_file: int = param(
        64 << 20, "size of an uploaded file; at most that of a message", at_least=1024
    )
    max_files: int = param(1000, "stored files and batches per API key", at_least=1)
    max_files_bytes: int = param(
        2 << 30, "size of these files and batches, with their results", at_least=1024
    )
    max_batch_lines: int = param(50_000, "requests of a batch", at_least=1)
    max_batch_running: int = param(
        16, "requests of batches that run at once, of all API keys", at_least=1, at_most=1024
    )

    def __post_init__(self) -> None:
        for name, row in LANGUAGE_LIMITS.items():
            row.check(getattr(self, name))

    def check(self, request: LLMRequest) -> None:
        """Check the content of a request.

        Raises InvalidField for a value over a limit, and for integers of over 64 bits. Limits of
        the body are checked before it is decoded.
        """
        if isinstance(request, Embed):
            _check_count("input", request.prompts, self.max_prompts)
        if isinstance(request, Score):
            _check_count("texts", request.texts, self.max_prompts)
            _check_length("texts", request.num_characters, self.max_pairs_length)
        if isinstance(request, Generate | Tokenize):
            _check_count("messages", request.messages, self.max_messages)
            _check_count("tools", request.tools, self.max_tools)
            for name in ("messages", "tools", "template_options"):
                check_json(name, getattr(request, name), self.max_depth)
        if isinstance(request, Generate):
            self._check_sampling(request)

    def _check_sampling(self, request: Generate) -> None:
        params = request.params
        if request.grammar is not None:
            _check_length("grammar", len(request.grammar.source), self.max_grammar)
        _check_length("stop", sum(map(len, params.stop)), self.max_stop_length)
        _check_length("bad_words", sum(map(len, params.bad_words)), self.max_bad_words_length)
        breakers = sum(map(len, params.dry_sequence_breakers))
        _check_length("dry_sequence_breakers", breakers, self.max_stop_length)
        _check_count("logit_bias", params.logit_bias, self.max_bias)
        _check_length("text_bias", sum(map(len, params.text_bias)), self.max_bad_words_length)
        _check_count("stop_token_ids", params.stop_token_ids, self.max_stop_ids)


LANGUAGE_LIMITS = rows_of(LanguageLimits)
_CONTAINERS = frozenset({dict, list, tuple})


def check_json(field: str, value: object, max_depth: int) -> None:
    """Check JSON that no struct describes.

    Raises InvalidField for more than `max_depth` nested lists and objects, and for an integer of
    over 64 bits.
    """
    groups: list[Any] = [
        (value,)
    ]  # values of the lists and objects at one depth, for each of these
    depth = 0
    while groups:
        if depth > max_depth:
            raise InvalidField(
                field, f"has over {max_depth} levels of arrays and objects, expected fewer"
            )
        inner: list[Any] = []
        for values in groups:
            kinds = set(map(type, values))
            if int in kinds:
                _check_ints(field, [value for value in values if type(value) is int])
            if not kinds.isdisjoint(_CONTAINERS):
                inner += [value for value in values if type(value) in _CONTAINERS and value]
        groups = [group.values() if type(group) is dict else group for group in inner]
        depth += 1


def _check_ints(field: str, values: Sequence[int]) -> None:
    for number in (min(values), max(values)):
        if not -(2**63) <= number < 2**64:
            shown = str(number) if abs(number) < 10**40 else "a number of over 40 digits"
            raise InvalidField(field, f"has {shown}, expected integers of 64 bits")


def _check_count(field: str, value: Sized | None, limit: int) -> None:
    if value is not None and len(value) > limit:
        raise InvalidField(field, f"has {len(value)} entries, expected at most {limit}")


def _check_length(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidField(field, f"has {count} characters, expected at most {limit}")
