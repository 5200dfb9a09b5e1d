"""Tasks of texts, against what transformers' own pipelines answer of each text alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino")

import transformers

from mindspore_serving.core.tasks import TaskSpec
from mindspore_serving.tasks.opening import OpenTask, open_task
from tests.tasks import checkpoints

pytestmark = pytest.mark.torch
CLOSE = 1e-4
ALL = np.array(0, np.int32)  # top_k
TEXTS = checkpoints.TEXTS


def families(*alike: str) -> pytest.MarkDecorator:
    """All families; of `alike`, other tests show the same."""
    return pytest.mark.parametrize(
        "family",
        [
            pytest.param(name, marks=[pytest.mark.long] * (name in alike))
            for name in checkpoints.FAMILIES
        ],
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    transformers.logging.disable_progress_bar()
    yield tmp_path_factory.mktemp("tasks")
    transformers.logging.enable_progress_bar()


def build(place: Path, family: str, head: str, **options: Any) -> Path:
    """The checkpoint; built once."""
    name = "-".join([family, head, *map(str, options.values())])
    directory = place / name.replace("/", "")
    if not directory.exists():
        checkpoints.build(directory, family, head, **options)
    return directory


def opened(directory: Path, task: str, runtime: str = "", **options: Any) -> OpenTask:
    return open_task(TaskSpec(str(directory), task, runtime, options))


def pipeline(directory: Path, task: str, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(directory), **options)


def assert_labels(answer: Any, wanted: list[dict[str, Any]]) -> None:
    """`answer` has all labels, in the order and with the scores of `wanted`."""
    label, score, labels, scores = answer
    assert json.loads(labels) == [one["label"] for one in wanted]
    assert np.abs(scores - [one["score"] for one in wanted]).max() < CLOSE
    assert label == wanted[0]["label"]
    assert score == scores[0]


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_a_text_and_a_pair_get_the_labels_of_the_reference(place: Path, family: str) -> None:
    labels = checkpoints.SENTIMENTS
    path = build(place, family, "ForSequenceClassification", labels=labels)
    task, reference = opened(path, "text-classification"), pipeline(path, "text-classification")
    for answer, text in zip(task.run([(text, "", ALL) for text in TEXTS]), TEXTS, strict=True):
        assert_labels(answer, reference(text, top_k=None))
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    for answer, (text, pair) in zip(task.run([(*one, ALL) for one in pairs]), pairs, strict=True):
        assert_labels(answer, reference({"text": text, "text_pair": pair}, top_k=None))
    task.close()


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", ["stars"]),
        ("regression", ["stars", "length"]),
        ("multi_label_classification", ["funny", "sad", "long"]),
        ("single_label_classification", ["no", "yes"]),
        (None, ["relevance"]),
    ],
)
def test_the_problem_type_says_how_logits_become_scores(
    place: Path, problem: str | None, labels: list[str]
) -> None:
    head = "ForSequenceClassification"
    path = build(place, "distilbert", head, labels=labels, problem_type=problem)
    task, reference = opened(path, "text-classification"), pipeline(path, "text-classification")
    for answer, text in zip(task.run([(text, "", ALL) for text in TEXTS]), TEXTS, strict=True):
        assert_labels(answer, reference(text, top_k=None))
    task.close()


@families("roberta", "xlm-roberta", "mpnet")  # their heads of tokens are as those of bert
def test_tokens_get_the_entities_of_the_reference(place: Path, family: str) -> None:
    path = build(place, family, "ForTokenClassification", labels=checkpoints.ENTITIES)
    task, reference = opened(path, "token-classification"), pipeline(path, "token-classification")
    kinds = {"none": "entity", "simple": "entity_group"}
    num_found = 0
    for text in TEXTS:
        for aggregation, name in kinds.items():
            ((answer,),) = task.run([(text, aggregation)])
            found = json.loads(answer)
            wanted = reference(text, aggregation_strategy=aggregation)
            places = [(one[name], one["start"], one["end"]) for one in wanted]
            assert [(one[name], one["start"], one["end"]) for one in found] == places
            scores = [one["score"] for one in wanted]
            assert np.allclose([one["score"] for one in found], scores, atol=CLOSE)
            assert all(one["word"] == text[one["start"] : one["end"]] for one in found)
            num_found += len(found)
    assert num_found > 20
    assert task.run([(TEXTS[0],)]) == task.run([(TEXTS[0], "simple")])
    task.close()


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_masks_get_the_tokens_of_the_reference(place: Path, family: str) -> None:
    path = build(place, family, "ForMaskedLM")
    task, reference = opened(path, "fill-mask"), pipeline(path, "fill-mask")
    mask = reference.tokenizer.mask_token
    texts = [f"Anna flew to {mask} with Ben.", f"{mask}, a film that is {mask}", mask]
    for text in texts:
        ((filled, tokens, scores),) = task.run([(text, np.array(4, np.int32))])
        wanted = reference(text, top_k=4)
        wanted = [wanted] if isinstance(wanted[0], dict) else wanted
        words = [[one["token_str"].strip() for one in best] for best in wanted]
        assert json.loads(tokens) == words
        assert np.abs(scores - [[one["score"] for one in best] for best in wanted]).max() < CLOSE
        for best in words:
            text = text.replace(mask, best[0], 1)
        assert filled == text
    task.close()


@families("distilbert", "roberta", "xlm-roberta", "mpnet")  # their states: llm/engine/test_encoder
def test_features_are_the_states_of_the_reference_or_their_mean(place: Path, family: str) -> None:
    path = build(place, family, "Model")
    task, reference = opened(path, "feature-extraction"), pipeline(path, "feature-extraction")
    pooled, plain = task.run([(text,) for text in TEXTS]), task.run([(t, "none") for t in TEXTS])
    for text, (vector,), (states,) in zip(TEXTS, pooled, plain, strict=True):
        wanted = np.array(reference(text)[0])
        assert np.abs(states - wanted).max() < CLOSE
        mean = wanted.mean(0)
        assert np.abs(vector - mean / np.linalg.norm(mean)).max() < CLOSE
    task.close()


@pytest.mark.parametrize("runtime", ["torch", "transformers"])
def test_another_runtime_gives_the_same_answers(place: Path, runtime: str) -> None:
    path = build(place, "bert", "ForSequenceClassification", labels=checkpoints.SENTIMENTS)
    rows = [(text, pair, ALL) for text in TEXTS for pair in ("", "a pair")]
    first, other = opened(path, "text-classification"), opened(path, "text-classification", runtime)
    for one, same in zip(first.run(rows), other.run(rows), strict=True):
        assert one[2] == same[2]
        assert np.abs(one[3] - same[3]).max() < CLOSE
    first.close()
    other.close()


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_other_texts_of_a_batch_change_no_answer(place: Path, family: str) -> None:
    labels = checkpoints.SENTIMENTS
    path = build(place, family, "ForSequenceClassification", labels=labels)
    task = opened(path, "text-classification", max_num_seqs=8, max_num_batched_tokens=100)
    rows = [
        (text[start:], "", ALL) for text in TEXTS if len(text) > 40 for start in range(0, 36, 6)
    ]
    together = task.run([*rows, ("",)])
    for row, answer in zip(rows, together[:-1], strict=True):
        ((_, _, labels, scores),) = task.run([row])
        assert labels == answer[2]
        assert np.abs(scores - answer[3]).max() < 1e-5
    assert "text is empty" in str(together[-1])
    task.close()


def test_top_k_is_that_of_the_request_or_the_option_or_five(place: Path) -> None:
    labels = list("abcdefg")
    path = build(place, "bert", "ForSequenceClassification", labels=labels)
    task = opened(path, "text-classification")
    (five,), (two,), (every,) = (
        task.run([row]) for row in (("x",), ("x", "", np.array(2, np.int64)), ("x", "", ALL))
    )
    assert [len(json.loads(answer[2])) for answer in (five, two, every)] == [5, 2, 7]
    assert np.array_equal(every[3][:2], two[3])
    assert every[3].sum() == pytest.approx(1.0, abs=1e-6)
    task.close()
    task = opened(path, "text-classification", top_k=1)
    assert json.loads(task.run([("x",)])[0][2]) == [every[0]]
    task.close()


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_long_text_is_refused_or_cut_where_the_tokenizer_cuts(place: Path, family: str) -> None:
    labels = checkpoints.SENTIMENTS
    path = build(place, family, "ForSequenceClassification", labels=labels)
    long = "the quick fox " * 200
    task = opened(path, "text-classification")
    refused, cut = task.run([(long,), (long, "", ALL, np.array(True))])
    assert "the model takes 200 tokens; set truncate" in str(refused)
    (longer,) = task.run([(long * 30, "", ALL, np.array(True))])
    assert np.array_equal(longer[3], cut[3])
    reference = pipeline(path, "text-classification")
    assert_labels(cut, reference(long, top_k=None, truncation=True))
    task.close()
    task = opened(path, "text-classification", truncate=True)
    asked = task.run([(long, "", ALL), (long, "", ALL, np.array(False))])
    assert np.abs(asked[0][3] - cut[3]).max() < 1e-6
    assert "set truncate" in str(asked[1])
    task.close()


def test_sentence_transformers_are_pooled_as_configured(place: Path) -> None:
    path = checkpoints.build(place / "pooled", "bert", "Model")
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    task = opened(path, "feature-extraction")
    ((vector,), (states,)) = task.run([(TEXTS[0],), (TEXTS[0], "none")])
    assert np.abs(vector - states[0]).max() < 1e-6
    task.close()


def test_any_encoder_gives_features_too(place: Path) -> None:
    labels = checkpoints.SENTIMENTS
    path = build(place, "roberta", "ForSequenceClassification", labels=labels)
    task = opened(path, "feature-extraction")
    assert task.run([(TEXTS[0],)])[0][0].shape == (48,)
    task.close()
