"""Zero-shot classification of images, against transformers; and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from PIL import Image

from mindspore_serving.core.tasks import DUAL, ZERO_SHOT, TaskSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.models.dual import DUAL_FAMILIES
from mindspore_serving.tasks.opening import open_task
from tests.llm import dual_towers

pytestmark = pytest.mark.torch

LABELS = dual_towers.LABELS
ALL = np.array(0, np.int32)  # top_k
FILE = dual_towers.file_of(dual_towers.pictures()[0])


@pytest.fixture(scope="module", params=dual_towers.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory, family):
    return dual_towers.build(tmp_path_factory.mktemp("zero") / family, family)


@pytest.fixture(scope="module")
def task(directory):
    task = open_task(TaskSpec(str(directory), ZERO_SHOT))
    yield task
    task.close()


def scores_of(logits, family):
    if family == "clip":
        powers = np.exp(logits - logits.max())
        return powers / powers.sum()
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize("template", ["", "a photo of {}"])
def test_images_have_the_scores_of_the_reference(task, directory, family, template):
    reference = dual_towers.Reference(directory, family)
    pictures = dual_towers.pictures()
    asked = [LABELS[: 1 + index % 3] for index in range(len(pictures))]  # other labels for each
    rows = [
        (dual_towers.file_of(picture), json.dumps(labels), template, ALL)
        for picture, labels in zip(pictures, asked, strict=True)
    ]
    for answer, picture, labels in zip(task.run(rows), pictures, asked, strict=True):
        texts = [(template or "This is a photo of {}.").format(label) for label in labels]
        expected = scores_of(reference.logits(picture, texts), family)
        order = np.argsort(-expected, kind="stable")
        assert json.loads(answer[2]) == [labels[index] for index in order]
        assert np.abs(answer[3] - expected[order]).max() < 1e-4
        assert (answer[0], answer[1]) == (json.loads(answer[2])[0], answer[3][0])


def test_labels_may_be_separated_by_commas(task):
    (listed,) = task.run([(FILE, json.dumps(LABELS), "", ALL)])
    (separated,) = task.run([(FILE, "cat, dog,an owl", "", ALL)])
    assert (listed[2], listed[3].tolist()) == (separated[2], separated[3].tolist())


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((FILE, ""), "candidate_labels is empty"),
        ((FILE, "cat,,dog"), "an entry that is empty"),
        ((FILE, '["cat", 1]'), "an entry that is empty or no text"),
        ((FILE, "[1"), "no JSON list of texts"),
        ((FILE, "[]"), "has 0 labels, expected 1 to 256"),
        ((FILE, json.dumps(["cat"] * 257)), "has 257 labels"),
        ((FILE, "cat", "no place"), "expected a text with one {}"),
        ((FILE, "cat " * 30), "candidate_labels"),
        ((FILE, "c" * 2000), "characters, the model takes 16 tokens"),
        ((FILE[:200], "cat"), "image is broken"),
        ((dual_towers.file_of(Image.new("1", (9000, 9000))), "cat"), "9000 x 9000 pixels"),
        ((b"%PDF", "cat"), "image is no JPEG, PNG"),
        (("", "cat"), "image is empty"),
    ],
)
def test_a_wrong_input_fails_alone(task, row, told):
    good, bad = task.run([(FILE, "cat,dog"), row])
    assert good[0] in ("cat", "dog")
    with pytest.raises(InvalidInputs, match=told):
        raise bad


def test_a_model_has_no_other_task(directory):
    with pytest.raises(StartError, match="expected one for feature-extraction"):
        open_task(TaskSpec(str(directory), "feature-extraction"))


def test_the_tables_of_families_agree():
    assert set(DUAL) == set(DUAL_FAMILIES)
