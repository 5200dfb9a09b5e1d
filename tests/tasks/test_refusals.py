"""What a task of texts refuses: requests, and directories."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino")

from mindspore_serving.core.tasks import TaskOptions, TaskSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.tasks.opening import OpenTask, open_task
from tests.tasks import checkpoints

pytestmark = pytest.mark.torch
SPEC = ("text-classification", "ForSequenceClassification")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, OpenTask]]:
    place = tmp_path_factory.mktemp("refusing")
    heads = {
        "text-classification": "ForSequenceClassification",
        "token-classification": "ForTokenClassification",
        "fill-mask": "ForMaskedLM",
        "feature-extraction": "Model",
    }
    found = {
        task: open_task(TaskSpec(str(checkpoints.build(place / task, "bert", head)), task))
        for task, head in heads.items()
    }
    yield found
    for task in found.values():
        task.close()


def number(value: Any) -> Any:
    return np.array(value)


@pytest.mark.parametrize(
    ("task", "row", "text"),
    [
        ("text-classification", ("",), "text is empty, expected a text"),
        ("text-classification", (" \n",), "text is empty, expected a text"),
        ("text-classification", (b"x",), "text is 1 bytes, expected a text"),
        ("text-classification", (number(3),), "text is 3, expected a text"),
        ("text-classification", (number([3, 4]),), r"text is an array of int64 \[2\], expected"),
        ("text-classification", ("x", number(1)), "text_pair is 1, expected a text"),
        ("text-classification", ("x", "", number(-1)), "top_k is -1, expected an integer of 0"),
        ("text-classification", ("x", "", number(1.5)), "top_k is 1.5, expected an integer"),
        ("text-classification", ("x", "", "two"), "top_k is 'two', expected an integer"),
        ("text-classification", ("x", "", "", number(1)), "truncate is 1, expected true or false"),
        ("text-classification", ("x" * 13_000,), "13,000 characters, the model takes 200 tokens"),
        ("text-classification", ("x " * 300,), "has 302 tokens, the model takes 200 tokens; set"),
        ("text-classification", ("x" * 60_000, "", "", number(True)), "60,000 characters"),
        ("text-classification", ("x", "x " * 30_000, "", number(True)), "60,001 characters"),
        ("text-classification", ("\ud800",), "the text cannot be tokenized"),
        ("token-classification", ("x", "first"), "aggregation is 'first', expected simple or none"),
        (
            "fill-mask",
            ("no mask",),
            r"text has no \[MASK\]: write it where a token is to be filled",
        ),
        ("feature-extraction", ("x", "max"), "pooling is 'max', expected model or none"),
    ],
)
def test_a_wrong_request_fails_alone_with_a_reason(
    tasks: dict[str, OpenTask], task: str, row: tuple[Any, ...], text: str
) -> None:
    good = "a [MASK] text"
    first, wrong, last = tasks[task].run([(good,), row, (good,)])
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
    with pytest.raises(InvalidInputs, match=text):
        raise wrong


def change(**entries: object) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (remove("config.json"), "has no config.json"),
        (remove("tokenizer.json"), "tokenizer.json does not exist"),
        (remove("model.safetensors"), r"has no \*.safetensors"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be read"),
        (change(id2label={"0": "a"}), "1 labels, but the checkpoint's classifier has 3 outputs"),
        (change(id2label={"1": "a", "2": "b", "3": "c"}), "id2label in config.json has no '0'"),
        (change(id2label={"0": 1, "1": 2, "2": 3}), "id2label that is not an object of strings"),
        (change(id2label=None, num_labels=4), "4 labels, but the checkpoint's classifier has 3"),
        (change(problem_type="ranking"), "problem_type 'ranking', expected one of regression"),
        (change(vocab_size=999), "word_embeddings.weight' is .*, expected"),
        (change(hidden_size=96), "is .*, expected"),
        (
            change(architectures=["BertForQuestionAnswering"]),
            "'BertForQuestionAnswering'.*, whose head is not supported; expected one for text-cl",
        ),
        (
            change(architectures=["BertForTokenClassification"]),
            "which is of token-classification; expected one for text-classification",
        ),
        (change(architectures=[]), "whose head is not supported"),
        (
            change(architectures=["SecretForSequenceClassification"], model_type="secret"),
            "transformers cannot load",
        ),
    ],
    ids=range(15),
)
def test_a_directory_that_is_incomplete_or_contradicts_itself_is_refused(
    tmp_path: Path, break_it: Callable[[Path], None], text: str
) -> None:
    task, head = SPEC
    path = checkpoints.build(tmp_path / "bert", "bert", head, labels=checkpoints.SENTIMENTS)
    break_it(path)
    with pytest.raises(StartError, match=text):
        open_task(TaskSpec(str(path), task))


def test_a_mask_that_the_tokenizer_does_not_name_is_missed(tmp_path: Path) -> None:
    path = checkpoints.build(tmp_path / "bert", "bert", "ForMaskedLM")
    config = json.loads((path / "tokenizer_config.json").read_text())
    del config["mask_token"]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(StartError, match="has no mask_token"):
        open_task(TaskSpec(str(path), "fill-mask"))


def test_code_in_the_directory_is_not_run(tmp_path: Path) -> None:
    task, head = SPEC
    path = checkpoints.build(tmp_path / "own", "electra", head)
    witness = tmp_path / "was_run"
    (path / "modeling_own.py").write_text(f"open({str(witness)!r}, 'w')\n")
    classes = {
        "AutoConfig": "modeling_own.A",
        "AutoModelForSequenceClassification": "modeling_own.B",
    }
    change(model_type="own", architectures=["OwnForSequenceClassification"], auto_map=classes)(path)
    with pytest.raises(StartError, match="transformers cannot load"):
        open_task(TaskSpec(str(path), task))
    assert not witness.exists()


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    """Opening the file would wait for ever."""
    task, head = SPEC
    for family in ("bert", "electra"):
        path = checkpoints.build(tmp_path / family, family, head)
        (path / "model.safetensors").unlink()
        os.mkfifo(path / "pytorch_model.bin")
        assert stat.S_ISFIFO((path / "pytorch_model.bin").stat().st_mode)
        with pytest.raises(StartError, match="safetensors"):
            open_task(TaskSpec(str(path), task))


@pytest.mark.parametrize(
    ("runtime", "options", "text"),
    [
        ("jax", {}, "runtime is 'jax', expected one of openvino, torch, transformers"),
        ("", {"top_k": -1}, "top_k is -1, expected an int >= 0"),
        ("", {"truncate": "yes"}, "truncate is 'yes', expected True or False"),
        ("", {"colour": "red"}, "there is no option 'colour', expected one of"),
        ("", {"max_model_len": 999}, "max_model_len is 999, but the model has 200 positions"),
        (
            "transformers",
            {"max_model_len": 999},
            "max_model_len is 999, but the model has 200 positions",
        ),
    ],
)
def test_options_that_do_not_exist_are_refused(
    tmp_path: Path, runtime: str, options: dict[str, Any], text: str
) -> None:
    task, head = SPEC
    path = checkpoints.build(tmp_path / "bert", "bert", head)
    with pytest.raises(StartError, match=text):
        open_task(TaskSpec(str(path), task, runtime, options))


def test_limits_of_images_are_numbers() -> None:
    for name in ("max_image_bytes", "max_image_pixels"):
        with pytest.raises(InvalidInputs, match=f"{name} is 0, expected an int >= 1"):
            TaskOptions(**{name: 0})
