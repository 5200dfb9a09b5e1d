"""Queries of the text tasks to a model, and conversion of its logits to outputs.

It knows no model.
"""

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
class Query:
    """Query of one instance: its tokens, and the positions of the tokens whose logits it needs.

    `postprocess` converts these logits [positions, outputs of the model] to the outputs of the
    task.
    """

    tokens: TokenizedInput
    positions: list[int]
    postprocess: Callable[[Vectors], tuple[Value, ...]]


QueryBuilder = Callable[[str, TokenizedInput, Mapping[str, Value]], Query]
"""Creates the query of a text, its tokens and the given inputs.  Raises InvalidInputs."""


def label_queries(labels: Labels, top_k: int) -> QueryBuilder:
    """Return the builder of text classification; `top_k` is the default of the input."""

    def build(text: str, tokens: TokenizedInput, inputs: Mapping[str, Value]) -> Query:
        count = read_int(inputs, "top_k", top_k)
        return Query(tokens, [0], lambda logits: labels.answer(logits[0], count))

    return build


def entity_queries(labels: Labels) -> QueryBuilder:
    """Return the builder of token classification."""

    def build(text: str, tokens: TokenizedInput, inputs: Mapping[str, Value]) -> Query:
        aggregation = read_choice(inputs, "aggregation", AGGREGATIONS)
        positions = [index for index, is_special in enumerate(tokens.is_special) if not is_special]

        def postprocess(logits: Vectors) -> tuple[Value, ...]:
            token_labels = label_tokens(tokens, positions, logits, labels)
            return (to_entities(text, token_labels, aggregation),)

        return Query(tokens, positions, postprocess)

    return build


def vector_queries(pooling: Pooling) -> QueryBuilder:
    """Return the builder of feature extraction."""

    def build(text: str, tokens: TokenizedInput, inputs: Mapping[str, Value]) -> Query:
        is_pooled = read_choice(inputs, "pooling", POOLINGS) == "model"

        def postprocess(states: Vectors) -> tuple[Value, ...]:
            return (pooling.apply(states, [len(states)])[0] if is_pooled else states,)

        return Query(tokens, list(range(len(tokens.ids))), postprocess)

    return build


def fill_queries(tokenizer: Tokenizer, top_k: int) -> QueryBuilder:
    """Return the builder of fill-mask.  Raises StartError for a tokenizer without a mask."""
    mask = tokenizer.special_tokens.get("mask_token")
    mask_id = None if mask is None else tokenizer.token_id(mask)
    if mask_id is None:
        raise StartError("tokenizer_config.json has no mask_token, or one that is no token")

    def build(text: str, tokens: TokenizedInput, inputs: Mapping[str, Value]) -> Query:
        count = read_int(inputs, "top_k", top_k)
        positions = [index for index, token in enumerate(tokens.ids) if token == mask_id]
        if not positions:
            raise InvalidInputs(f"text has no {mask}: write it where a token is to be filled in")
        spans = [tokens.offsets[position] for position in positions]

        def postprocess(logits: Vectors) -> tuple[Value, ...]:
            scores = softmax(logits)
            best = [likeliest(row, count) for row in scores]
            words = [[tokenizer.decode([token], False).strip() for token in row] for row in best]
            filled = _fill(text, spans, [row[0] for row in words])
            return (
                filled,
                json.dumps(words, ensure_ascii=False),
                np.take_along_axis(scores, np.array(best), axis=1),
            )

        return Query(tokens, positions, postprocess)

    return build


def _fill(text: str, spans: list[tuple[int, int]], words: list[str]) -> str:
    """Return `text` with its masks replaced by `words`; a mask may include the space before it."""
    pieces, end = [], 0
    for (start, stop), word in zip(spans, words, strict=True):
        mask = text[start:stop]
        pieces += [text[end:start], mask[: len(mask) - len(mask.lstrip())], word]
        end = stop
    return "".join([*pieces, text[end:]])
