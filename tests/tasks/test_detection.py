"""Zero-shot detection, against transformers; and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch
import transformers

from mindspore_serving.core.tasks import DETECTION, TaskSpec, task_of
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.tasks.opening import open_task
from tests.llm import dual_towers

pytestmark = pytest.mark.torch

LABELS = dual_towers.LABELS
ALL = np.array(0, np.int32)  # top_k
LOW = np.array(0.0, np.float32)  # threshold


@pytest.fixture(scope="module", params=dual_towers.DETECTORS)
def directory(request, tmp_path_factory):
    return dual_towers.build_detector(tmp_path_factory.mktemp("owl") / "owl", request.param)


@pytest.fixture(scope="module")
def task(directory):
    task = open_task(TaskSpec(str(directory), DETECTION))
    yield task
    task.close()


def reference(directory, image, labels, threshold):
    """Return the boxes of the library's own model, the likeliest first."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(directory).eval()
    text = tokenizer(labels, padding="max_length", max_length=16, return_tensors="pt")
    names = ("input_ids", "attention_mask")
    with torch.no_grad():
        inputs = {name: text[name] for name in names}
        outputs = model(**inputs, **processor(image, return_tensors="pt"))
    size = [(image.height, image.width)]
    (boxes,) = processor.post_process_object_detection(outputs, threshold, size)
    order = torch.argsort(-boxes["scores"], stable=True)
    return [boxes[name][order] for name in ("scores", "labels", "boxes")]


@pytest.mark.parametrize("labels", [LABELS, ["dog"]])
def test_boxes_are_those_of_the_reference(task, directory, labels):
    for picture in dual_towers.pictures():
        scores, indices, boxes = reference(directory, picture, labels, 0.0)
        row = (dual_towers.file_of(picture), json.dumps(labels), LOW, ALL)
        (answer,) = task.run([row])
        rows = json.loads(answer[0])
        assert len(rows) == len(scores) == 16
        assert np.abs([each["score"] for each in rows] - scores.numpy()).max() < 1e-4
        assert [each["label"] for each in rows] == [labels[index] for index in indices]
        assert np.abs(np.array([each["box"] for each in rows]) - boxes.numpy()).max() < 0.02


def test_threshold_and_top_k_choose_boxes(task, directory):
    picture = dual_towers.pictures()[0]
    scores, _, _ = reference(directory, picture, LABELS, 0.0)
    middle = np.array(float(scores[5] + scores[6]) / 2, np.float32)
    file = dual_towers.file_of(picture)
    above, three = task.run([(file, "cat,dog,an owl", middle, ALL)])[0], None
    (three,) = task.run([(file, "cat,dog,an owl", LOW, np.array(3, np.int32))])
    assert len(json.loads(above[0])) == 6
    assert json.loads(three[0]) == json.loads(above[0])[:3]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((b"%PDF", "cat"), "image is no JPEG, PNG"),
        ((b"%PDF", ""), "candidate_labels is empty"),
        ((b"%PDF", "cat " * 30), "candidate_labels"),
        ((b"%PDF", "cat", np.array(2.0, np.float32)), "threshold is 2.0, expected a number of 0"),
        ((b"%PDF", "cat", np.array(np.nan, np.float32)), "threshold is nan, expected"),
    ],
)
def test_a_wrong_input_fails_alone(task, row, told):
    good, bad = task.run([(dual_towers.file_of(dual_towers.pictures()[0]), "cat"), row])
    assert isinstance(json.loads(good[0]), list)
    with pytest.raises(InvalidInputs, match=told):
        raise bad


def test_other_detectors_have_no_task():
    assert task_of("DetrForObjectDetection") == ""
