"""The limits of what one request to a language model may hold, and their check: one table, each row
a field of `LanguageLimits`.  Knows no protocol and no model.
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
    """Of the requests of one server.

    Raises InvalidField naming the limit, what was given and what is accepted.
    """

    max_body: int = param(
        8 << 20, "bytes of a body; else 413, before more of it is read", at_least=1024
    )
    max_values: int = param(
        1 << 19,
        "values in a body, before any is made: texts, numbers, lists and objects, wherever they "
        "are; so also token ids of all prompts",
        at_least=1024,
    )
    max_objects: int = param(1 << 14, "objects in a body, before any is made", at_least=64)
    max_depth: int = param(128, "lists and objects in one another", at_least=8, at_most=200)
    max_messages: int = param(2048, "messages of a conversation", at_least=1)
    max_tools: int = param(128, "tools", at_least=0)
    max_prompts: int = param(2048, "texts to embed or to score in one request", at_least=1)
    max_pairs_length: int = param(
        16 << 20,
        "characters of all texts to score in one request, a query counted for each of its "
        "documents",
        at_least=1024,
    )
    max_grammar: int = param(1 << 16, "characters of a JSON schema, regex or grammar", at_least=64)
    max_stop_length: int = param(4096, "characters of all stop texts together", at_least=1)
    max_bad_words_length: int = param(4096, "characters of all bad words together", at_least=1)
    max_bias: int = param(1024, "tokens with a `logit_bias`", at_least=0)
    max_stop_ids: int = param(1024, "stop tokens", at_least=0)
    max_stored: int = param(
        256,
        "OpenAI's responses that are stored for each API key, or for all who have none; the oldest "
        "is forgotten",
        at_least=0,
    )
    max_stored_bytes: int = param(32 << 20, "bytes of those; so also", at_least=0)

    def __post_init__(self) -> None:
        for name, row in LANGUAGE_LIMITS.items():
            row.check(getattr(self, name))

    def check(self, request: LLMRequest) -> None:
        """Raises InvalidField for what is over a limit of content, and for integers of over 64
        bits; not for what a body is limited to.
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
        _check_count("logit_bias", params.logit_bias, self.max_bias)
        _check_count("stop_token_ids", params.stop_token_ids, self.max_stop_ids)


LANGUAGE_LIMITS = rows_of(LanguageLimits)
_CONTAINERS = frozenset({dict, list, tuple})


def check_json(field: str, value: object, max_depth: int) -> None:
    """For JSON that no struct describes: raises InvalidField if more than `max_depth` lists and
    objects are in one another, or an integer has over 64 bits.
    """
    groups: list[Any] = [(value,)]  # the values of lists and objects that are equally deep
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
                _check_ints(field, [one for one in values if type(one) is int])
            if not kinds.isdisjoint(_CONTAINERS):
                inner += [one for one in values if type(one) in _CONTAINERS and one]
        groups = [one.values() if type(one) is dict else one for one in inner]
        depth += 1


def _check_ints(field: str, values: Sequence[int]) -> None:
    for one in (min(values), max(values)):
        if not -(2**63) <= one < 2**64:
            shown = str(one) if abs(one) < 10**40 else "a number of over 40 digits"
            raise InvalidField(field, f"has {shown}, expected integers of 64 bits")


def _check_count(field: str, value: Sized | None, most: int) -> None:
    if value is not None and len(value) > most:
        raise InvalidField(field, f"has {len(value)} entries, expected at most {most}")


def _check_length(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidField(field, f"has {count} characters, expected at most {most}")
