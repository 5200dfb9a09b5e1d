"""Entities in a text, from the labels of its tokens.  Knows no model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mindspore_serving.llm.engine.labels import Labels
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import TokenizedInput

NONE = "O"  # the label of tokens that are of no entity
AGGREGATIONS = ("simple", "none")


@dataclass(frozen=True, slots=True)
class TokenLabel:
    """Likeliest label of token `index`, which is text[start:end]."""

    label: str
    score: float
    index: int
    start: int
    end: int


def label_tokens(
    tokens: TokenizedInput, positions: Sequence[int], logits: Vectors, labels: Labels
) -> list[TokenLabel]:
    """Return the likeliest label of each token at `positions`; logits are [positions, labels]."""
    scores = labels.scores(logits)
    best = scores.argmax(-1)
    return [
        TokenLabel(
            labels.names[best[row]],
            float(scores[row, best[row]]),
            position,
            *tokens.offsets[position],
        )
        for row, position in enumerate(positions)
    ]


def to_entities(text: str, labels: Sequence[TokenLabel], aggregation: str) -> str:
    """Return the entities as JSON: one for each token, or for adjacent tokens of the same label.

    Tokens labelled NONE are left out.
    """
    if aggregation == "none":
        entities = [
            {"entity": label.label, "index": label.index, **_span(text, [label])}
            for label in labels
            if label.label != NONE
        ]
    else:
        entities = [
            {"entity_group": _kind(group[0].label), **_span(text, group)}
            for group in _adjacent(labels)
            if group[0].label != NONE
        ]
    return json.dumps(entities, ensure_ascii=False)


def _span(text: str, group: Sequence[TokenLabel]) -> dict[str, Any]:
    start, end = group[0].start, group[-1].end
    score = sum(label.score for label in group) / len(group)
    return {"score": round(score, 6), "word": text[start:end], "start": start, "end": end}


def _adjacent(labels: Sequence[TokenLabel]) -> list[list[TokenLabel]]:
    """Group adjacent tokens of the same kind; a label with "B-" begins a new group."""
    number, last = 0, ""
    numbers = []
    for label in labels:
        number += label.label.startswith("B-") or _kind(label.label) != last
        last = _kind(label.label)
        numbers.append(number)
    pairs = zip(numbers, labels, strict=True)
    return [[label for _, label in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label
