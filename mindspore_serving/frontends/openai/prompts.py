"""The four forms of a completion's prompt, and of what is to be embedded."""

from collections.abc import Sequence

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.fields import show
from mindspore_serving.frontends.openai.translations import check_token

MAX_PROMPTS = 2048
Prompt = str | list[int]


def to_prompts(
    given: str | Sequence[str | int | list[int]], card: ModelCard, param: str = "prompt"
) -> list[Prompt]:
    """The prompts of a text, a list of texts, token ids, or a list of lists of token ids.  Raises
    InvalidField; `param` is the field's name."""
    if isinstance(given, str):
        return [given]
    kinds = {type(entry) for entry in given}
    if not given or len(kinds) > 1:
        raise InvalidField(
            param, f"is {show(given)}, expected a text, texts, token ids, or lists of token ids"
        )
    if kinds == {int}:
        return [_checked([entry for entry in given if isinstance(entry, int)], card, param)]
    _check_count(len(given), card, param)
    return [
        _checked(entry, card, param) if isinstance(entry, list) else str(entry) for entry in given
    ]


def _checked(ids: list[int], card: ModelCard, param: str) -> list[int]:
    for token_id in (min(ids, default=0), max(ids, default=0)):
        check_token(param, token_id, card)
    return ids


def _check_count(count: int, card: ModelCard, param: str) -> None:
    most = MAX_PROMPTS
    if card.max_num_waiting is not None:
        most = min(most, card.max_num_waiting + card.max_num_seqs)
    if count > most:
        raise InvalidField(param, f"has {count} prompts, expected at most {most}")
