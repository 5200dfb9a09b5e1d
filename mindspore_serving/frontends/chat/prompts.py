"""The prompts of a request: texts or token ids, within the limits of a model."""

from collections.abc import Collection, Sequence
from typing import cast

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected

MAX_PROMPTS = 2048

Prompt = str | list[int]


def to_prompts(
    value: str | Sequence[str | int | list[int]], card: ModelCard, param: str = "prompt"
) -> list[Prompt]:
    """Return the prompts: of a text, a list of texts, token ids, or a list of lists of token ids.

    Raises InvalidField; `param` is the field's name.
    """
    if isinstance(value, str):
        return [value]
    kinds: set[type] = set(map(type, value))
    if not value or len(kinds) > 1:
        raise unexpected(param, value, "a text, texts, token ids, or lists of token ids")
    if kinds == {int}:
        ids = cast("list[int]", value)
        check_tokens(param, ids, card)
        return [ids]
    _check_count(len(value), card, param)
    prompts = [entry if isinstance(entry, list) else str(entry) for entry in value]
    for prompt in prompts:
        if isinstance(prompt, list):
            check_tokens(param, prompt, card)
    return prompts


def _check_count(count: int, card: ModelCard, param: str) -> None:
    max_prompts = MAX_PROMPTS
    if card.max_num_waiting is not None:
        max_prompts = min(max_prompts, card.max_num_waiting + card.max_num_seqs)
    if count > max_prompts:
        raise InvalidField(param, f"has {count} prompts, expected at most {max_prompts}")


def check_tokens(field: str, token_ids: Collection[int], card: ModelCard) -> None:
    """Check that the model has all these tokens.

    Raises InvalidField.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < card.vocab_size:
            last = card.vocab_size - 1
            problem = f"has token id {token_id}, expected 0 to {last}, the range of the model"
            raise InvalidField(field, problem)
