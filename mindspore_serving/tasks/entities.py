"""What a token classifier found in a text, as entities.  Knows no model."""

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
    """The likeliest label of token `index`, which is text[start:end]."""

    label: str
    score: float
    index: int
    start: int
    end: int


def label_tokens(
    tokens: TokenizedInput, places: Sequence[int], logits: Vectors, labels: Labels
) -> list[TokenLabel]:
    """Of the tokens at `places`, whose logits are [places, labels]."""
    scores = labels.scores(logits)
    best = scores.argmax(-1)
    return [
        TokenLabel(
            labels.names[best[row]], float(scores[row, best[row]]), place, *tokens.offsets[place]
        )
        for row, place in enumerate(places)
    ]


def to_entities(text: str, found: Sequence[TokenLabel], aggregation: str) -> str:
    """As JSON: an object for each token, or for neighbours of one label, without those of NONE."""
    if aggregation == "none":
        entities = [
            {"entity": one.label, "index": one.index, **_place(text, [one])}
            for one in found
            if one.label != NONE
        ]
    else:
        entities = [
            {"entity_group": _kind(group[0].label), **_place(text, group)}
            for group in _neighbours(found)
            if group[0].label != NONE
        ]
    return json.dumps(entities, ensure_ascii=False)


def _place(text: str, group: Sequence[TokenLabel]) -> dict[str, Any]:
    start, end = group[0].start, group[-1].end
    score = sum(one.score for one in group) / len(group)
    return {"score": round(score, 6), "word": text[start:end], "start": start, "end": end}


def _neighbours(found: Sequence[TokenLabel]) -> list[list[TokenLabel]]:
    """Tokens in a row of one kind; a label with "B-" begins anew."""
    number, last = 0, ""
    numbers = []
    for one in found:
        number += one.label.startswith("B-") or _kind(one.label) != last
        last = _kind(one.label)
        numbers.append(number)
    pairs = zip(numbers, found, strict=True)
    return [[one for _, one in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label
