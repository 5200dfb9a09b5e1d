"""Which directories of models that read texts are language models, and which method they have."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core.declaration import Declaration, LanguageSpec
from mindspore_serving.worker.default_method import add_default_method

HEAD = "ForSequenceClassification"


def made(directory: Path, architecture: str, options: Any = (), **config: Any) -> Declaration:
    """Of a directory with that config.json."""
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    (directory / "tokenizer.json").write_text("{}")
    spec = LanguageSpec(str(directory), "openvino", options=dict(options))
    declaration = Declaration("reader", language=spec)
    add_default_method(declaration, spec)
    return declaration


@pytest.mark.parametrize("architecture", [f"Bert{HEAD}", f"ModernBert{HEAD}", "MPNetModel"])
def test_an_encoder_is_both_a_task_and_a_language_model(tmp_path: Path, architecture: str) -> None:
    found = made(tmp_path, architecture)
    assert found.language is not None
    (task,) = found.tasks.values()
    assert task.task == ("text-classification" if HEAD in architecture else "feature-extraction")
    assert list(found.methods) == ["predict"]


def test_a_body_of_a_model_that_generates_is_a_language_model(tmp_path: Path) -> None:
    for architecture, config in (("Qwen3Model", {}), (f"Qwen3{HEAD}", {"num_labels": 1})):
        found = made(tmp_path, architecture, **config)
        assert (found.language is not None, found.tasks) == (True, {})


def test_a_classifier_of_several_labels_is_a_task_unless_used_to_rank(tmp_path: Path) -> None:
    assert made(tmp_path, f"Qwen3{HEAD}", num_labels=3).language is None
    assert made(tmp_path, f"Qwen3{HEAD}", {"ranking": True}, num_labels=3).language is not None
