"""What each task of texts asks a model, and what it makes of the logits.  Knows no model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.pooling import Pooling
from mindspore_serving.llm.engine.labels import Labels, likeliest, softmax
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput, Tokenizer
from mindspore_serving.tasks.entities import AGGREGATIONS, label_tokens, to_entities
from mindspore_serving.tasks.options import read_choice, read_int

POOLINGS = ("model", "none")


@dataclass(frozen=True, slots=True)
class Question:
    """One instance: its tokens, the places of those whose logits are wanted, and what makes the
    outputs of these, [places, outputs of the model].
    """

    tokens: TokenizedInput
    places: list[int]
    answer: Callable[[Vectors], tuple[Value, ...]]


Ask = Callable[[str, TokenizedInput, Mapping[str, Value]], Question]
"""Of a text, its tokens and the inputs that were given.  Raises InvalidInputs."""


def ask_for_labels(labels: Labels, top_k: int) -> Ask:
    """Text classification; `top_k` where an instance does not give it."""

    def ask(text: str, tokens: TokenizedInput, given: Mapping[str, Value]) -> Question:
        most = read_int(given, "top_k", top_k)
        return Question(tokens, [0], lambda logits: labels.answer(logits[0], most))

    return ask


def ask_for_entities(labels: Labels) -> Ask:
    """Token classification."""

    def ask(text: str, tokens: TokenizedInput, given: Mapping[str, Value]) -> Question:
        aggregation = read_choice(given, "aggregation", AGGREGATIONS)
        places = [place for place, added in enumerate(tokens.is_special) if not added]

        def answer(logits: Vectors) -> tuple[Value, ...]:
            found = label_tokens(tokens, places, logits, labels)
            return (to_entities(text, found, aggregation),)

        return Question(tokens, places, answer)

    return ask


def ask_for_vector(pooling: Pooling) -> Ask:
    """Feature extraction."""

    def ask(text: str, tokens: TokenizedInput, given: Mapping[str, Value]) -> Question:
        is_pooled = read_choice(given, "pooling", POOLINGS) == "model"

        def answer(states: Vectors) -> tuple[Value, ...]:
            return (pooling.apply(states, [len(states)])[0] if is_pooled else states,)

        return Question(tokens, list(range(len(tokens.ids))), answer)

    return ask


def ask_for_fills(tokenizer: Tokenizer, top_k: int) -> Ask:
    """Fill-mask.  Raises StartError for a tokenizer without a mask."""
    mask = tokenizer.special_tokens.get("mask_token")
    mask_id = None if mask is None else tokenizer.token_id(mask)
    if mask_id is None:
        raise StartError("tokenizer_config.json names no mask_token, or one that is no token")

    def ask(text: str, tokens: TokenizedInput, given: Mapping[str, Value]) -> Question:
        most = read_int(given, "top_k", top_k)
        places = [place for place, token in enumerate(tokens.ids) if token == mask_id]
        if not places:
            raise InvalidInputs(f"text has no {mask}: write it where a token is to be filled in")
        spans = [tokens.offsets[place] for place in places]

        def answer(logits: Vectors) -> tuple[Value, ...]:
            scores = softmax(logits)
            best = [likeliest(row, most) for row in scores]
            words = [[tokenizer.decode([one], False).strip() for one in row] for row in best]
            filled = _fill(text, spans, [row[0] for row in words])
            return (
                filled,
                json.dumps(words, ensure_ascii=False),
                np.take_along_axis(scores, np.array(best), axis=1),
            )

        return Question(tokens, places, answer)

    return ask


def _fill(text: str, spans: list[tuple[int, int]], words: list[str]) -> str:
    """`text` with its masks replaced; a mask may include the space before it."""
    pieces, end = [], 0
    for (start, stop), word in zip(spans, words, strict=True):
        mask = text[start:stop]
        pieces += [text[end:start], mask[: len(mask) - len(mask.lstrip())], word]
        end = stop
    return "".join([*pieces, text[end:]])
