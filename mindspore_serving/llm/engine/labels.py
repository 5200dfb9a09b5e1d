"""What config.json says of a classifier's outputs: their labels, and how logits become scores."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.core.value import Value
from mindspore_serving.errors import StartError
from mindspore_serving.llm.step import Vectors

PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of the outputs, in order, and `problem`, one of `PROBLEMS`."""

    names: tuple[str, ...]
    problem: str = PROBLEMS[1]

    def scores(self, logits: Vectors) -> Vectors:
        """Of logits [..., labels]: probabilities, which for one label of several sum to 1; the
        logits themselves of a regression.
        """
        if self.problem == "regression":
            return logits
        if self.problem == "single_label_classification" and len(self.names) > 1:
            return softmax(logits)
        found: Vectors = 1 / (1 + np.exp(-logits))
        return found

    def answer(self, logits: Vectors, top_k: int) -> tuple[Value, ...]:
        """label, score, labels, scores: the likeliest, and the `top_k` likeliest, 0 for all."""
        scores = self.scores(logits)
        best = likeliest(scores, top_k)
        names = [self.names[index] for index in best]
        return names[0], scores[best[0]], json.dumps(names, ensure_ascii=False), scores[best]


def read_score_problem(config: Mapping[str, Any], labels: Labels) -> str:
    """What scores are made of the logits of a cross-encoder: as `labels` say, unless config.json
    names sentence-transformers' Identity.
    """
    own = config.get("sentence_transformers")
    given = own.get("activation_fn") if isinstance(own, dict) else None
    given = given or config.get("sbert_ce_default_activation_function")
    if given is None:
        return labels.problem
    name = str(given).rpartition(".")[2]
    if name == "Identity":
        return PROBLEMS[0]
    if name == "Sigmoid":
        return PROBLEMS[2]
    raise StartError(f"config.json has activation_fn {given!r}, expected Identity or Sigmoid")


def softmax(logits: Vectors) -> Vectors:
    """Over the last axis."""
    powers: Any = np.exp(logits - logits.max(-1, keepdims=True))
    found: Vectors = powers / powers.sum(-1, keepdims=True)
    return found


def likeliest(scores: Vectors, top_k: int) -> list[int]:
    """The places of the `top_k` largest of `scores` [n], 0 for all; the first of equals first."""
    found: list[int] = np.argsort(-scores, kind="stable")[: top_k or None].tolist()
    return found


def count_labels(config: Mapping[str, Any]) -> int:
    """How many config.json says that there are: 2 where it says nothing, as in the library that
    wrote it.
    """
    given = config.get("id2label")
    found = len(given) if isinstance(given, dict) else config.get("num_labels")
    return found if isinstance(found, int) else 2


def read_labels(config: Mapping[str, Any], count: int) -> Labels:
    """Of a model with `count` outputs.  Without id2label they are LABEL_0, LABEL_1, ...

    Raises StartError if config.json contradicts itself or the checkpoint.
    """
    problem = config.get("problem_type") or PROBLEMS[1]
    if problem not in PROBLEMS:
        raise StartError(
            f"config.json has problem_type {problem!r}, expected one of {', '.join(PROBLEMS)}"
        )
    given = config.get("id2label")
    if given is None:
        stated = config.get("num_labels", count)
        given = {str(n): f"LABEL_{n}" for n in range(stated if isinstance(stated, int) else 0)}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given.values()):
        raise StartError("config.json has an id2label that is no object of texts")
    if len(given) != count:
        raise StartError(
            f"config.json has {len(given)} labels, but the checkpoint's classifier has {count} "
            "outputs"
        )
    missing = [str(index) for index in range(count) if str(index) not in given]
    if missing:
        raise StartError(
            f"id2label in config.json has no {missing[0]!r}, expected 0 to {count - 1}"
        )
    return Labels(tuple(given[str(index)] for index in range(count)), problem)
