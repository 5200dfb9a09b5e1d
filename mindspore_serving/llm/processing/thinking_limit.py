"""Limit of the reasoning of a request, in the tokens of its model."""

from collections.abc import Sequence

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.chat.harmony import CLOSING
from mindspore_serving.llm.chat.reasoning_formats import REASONING_FORMATS
from mindspore_serving.llm.chat.tool_formats import HARMONY
from mindspore_serving.llm.engine.thinking import ThinkingLimit
from mindspore_serving.llm.processing.prepared import PreparedPrompt
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_FIELD = "thinking_token_budget"
_SENTENCE_ENDS = (".", "!", "?", ":", "\n", "。", "！", "？", "：")


def thinking_limit(
    prompt: PreparedPrompt, card: ModelCard, tokenizer: Tokenizer | None
) -> ThinkingLimit | None:
    """Return the limit of the request, or else the operator's; None for no limit.

    Raises InvalidField if the request has a limit and the model does not reason.
    """
    limit = prompt.params.thinking_token_budget
    stated = limit is not None
    name = prompt.answer_format.reasoning_format or card.reasoning_format
    limit = card.thinking_token_budget if limit is None else limit
    if limit is None or (not stated and not name):
        return None
    if not name or tokenizer is None:
        raise InvalidField(_FIELD, f"is {limit}, but the model does not reason: leave it out")
    row = REASONING_FORMATS[name]
    end_ids = tokenizer.encode(row.end, add_special=False)
    closing = tokenizer.encode(CLOSING, add_special=False)
    is_final = name == HARMONY and not prompt.answer_format.tools

    def has_ended(token_ids: Sequence[int]) -> bool:
        if len(end_ids) == 1:
            return token_ids[-1] == end_ids[0]
        # Its tokens depend on the text before it.
        return tokenizer.decode(token_ids, skip_special_tokens=False).rstrip().endswith(row.end)

    def ends_sentence(token_id: int) -> bool:
        return (
            tokenizer.decode([token_id], skip_special_tokens=False)
            .rstrip(" ")
            .endswith(_SENTENCE_ENDS)
        )

    return ThinkingLimit(
        limit,
        tokenizer.encode(row.begin, add_special=False),
        has_ended,
        closing if is_final else end_ids,
        row.is_open,
        ends_sentence,
    )
