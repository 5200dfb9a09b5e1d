"""What a directory says of instructions and dimensions; and of the scores of a cross-encoder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.embedding_files import read_embedding_options
from mindspore_serving.llm.engine.labels import Labels, read_score_problem


def options(directory: Path, described: dict[str, Any], **config: Any) -> Any:
    path = directory / "config_sentence_transformers.json"
    path.write_text(json.dumps(described))
    return read_embedding_options(directory, config, 48)


def test_without_options_there_are_no_instructions(
    tmp_path: Path,
) -> None:
    found = read_embedding_options(tmp_path, {}, 48)
    assert (found.prompts, found.default_prompt, found.dimensions) == ({}, "", ())
    assert not found.any_dimensions


def test_instructions_and_dimensions_are_read(tmp_path: Path) -> None:
    described = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    found = options(tmp_path, described, matryoshka_dimensions=[16, 8])
    assert (found.prompts, found.default_prompt) == ({"query": "q: "}, "query")
    assert found.dimensions == (8, 16, 48)
    assert options(tmp_path, {}, is_matryoshka=True).any_dimensions


@pytest.mark.parametrize(
    ("described", "config", "problem"),
    [
        ({"prompts": ["q"]}, {}, "expected an object of strings"),
        ({"prompts": {"q": 5}}, {}, "expected an object of strings"),
        ({"default_prompt_name": "q"}, {}, "none of its prompts"),
        ({}, {"matryoshka_dimensions": [49]}, "numbers from 1 to 48"),
        ({}, {"matryoshka_dimensions": 8}, "numbers from 1 to 48"),
    ],
)
def test_contradictory_options_are_refused(
    tmp_path: Path, described: dict[str, Any], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(StartError, match=problem):
        options(tmp_path, described, **config)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, 1 / (1 + np.exp(-2))),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 2.0),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 2.0),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            1 / (1 + np.exp(-2)),
        ),
    ],
)
def test_a_cross_encoders_scores_follow_its_activation(
    config: dict[str, Any], wanted: float
) -> None:
    labels = Labels(("fits",))
    problem = read_score_problem(config, labels)
    scores = Labels(labels.names, problem).scores(np.array([[2.0]], np.float32))
    assert scores[0, 0] == pytest.approx(wanted)


def test_another_activation_is_refused() -> None:
    with pytest.raises(StartError, match="expected Identity or Sigmoid"):
        read_score_problem({"sentence_transformers": {"activation_fn": "a.Tanh"}}, Labels(("x",)))
