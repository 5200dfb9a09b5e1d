"""Labels of a classifier's outputs, by config.json, and how logits become scores."""

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
    """Labels of the outputs, in order, and `problem`, one of `PROBLEMS`."""

    names: tuple[str, ...]
    problem: str = PROBLEMS[1]

    def scores(self, logits: Vectors) -> Vectors:
        """Return the scores of logits [..., labels].

        These are probabilities, which sum to 1 if one label of several applies; for a regression
        the logits themselves.
        """
        if self.problem == "regression":
            return logits
        if self.problem == "single_label_classification" and len(self.names) > 1:
            return softmax(logits)
        probabilities: Vectors = 1 / (1 + np.exp(-logits))
        return probabilities

    def answer(self, logits: Vectors, top_k: int) -> tuple[Value, ...]:
        """Return label, score, labels, scores: the likeliest, and the `top_k` likeliest or all.

        `top_k` is 0 for all.  `labels` is a JSON list.
        """
        scores = self.scores(logits)
        best = likeliest(scores, top_k)
        names = [self.names[index] for index in best]
        return names[0], scores[best[0]], json.dumps(names, ensure_ascii=False), scores[best]


def read_score_problem(config: Mapping[str, Any], labels: Labels) -> str:
    """Return the problem that turns the logits of a cross-encoder into scores.

    It is that of `labels`, unless config.json names an activation as sentence-transformers do.
    """
    options = config.get("sentence_transformers")
    activation = options.get("activation_fn") if isinstance(options, dict) else None
    activation = activation or config.get("sbert_ce_default_activation_function")
    if activation is None:
        return labels.problem
    name = str(activation).rpartition(".")[2]
    if name == "Identity":
        return PROBLEMS[0]
    if name == "Sigmoid":
        return PROBLEMS[2]
    raise StartError(f"config.json has activation_fn {activation!r}, expected Identity or Sigmoid")


def softmax(logits: Vectors) -> Vectors:
    """Return the softmax over the last axis."""
    powers: Any = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Vectors = powers / powers.sum(-1, keepdims=True)
    return probabilities


def likeliest(scores: Vectors, top_k: int) -> list[int]:
    """Return the indices of the `top_k` largest of `scores` [n], 0 for all, equals in order."""
    indices: list[int] = np.argsort(-scores, kind="stable")[: top_k or None].tolist()
    return indices


def count_labels(config: Mapping[str, Any]) -> int:
    """Return the number of labels by config.json: 2 if it has none, as transformers assumes."""
    names = config.get("id2label")
    count = len(names) if isinstance(names, dict) else config.get("num_labels")
    return count if isinstance(count, int) else 2


def read_labels(config: Mapping[str, Any], count: int) -> Labels:
    """Return the labels of a model with `count` outputs: LABEL_0, LABEL_1, ... without id2label.

    Raises StartError if config.json contradicts itself or the checkpoint.
    """
    problem = config.get("problem_type") or PROBLEMS[1]
    if problem not in PROBLEMS:
        raise StartError(
            f"config.json has problem_type {problem!r}, expected one of {', '.join(PROBLEMS)}"
        )
    names = config.get("id2label")
    if names is None:
        stated = config.get("num_labels", count)
        names = {str(n): f"LABEL_{n}" for n in range(stated if isinstance(stated, int) else 0)}
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise StartError("config.json has an id2label that is not an object of strings")
    if len(names) != count:
        raise StartError(
            f"config.json has {len(names)} labels, but the checkpoint's classifier has {count} "
            "outputs"
        )
    missing = [str(index) for index in range(count) if str(index) not in names]
    if missing:
        raise StartError(
            f"id2label in config.json has no {missing[0]!r}, expected 0 to {count - 1}"
        )
    return Labels(tuple(names[str(index)] for index in range(count)), problem)
