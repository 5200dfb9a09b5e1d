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


@pytest.fixture(scope="module", params=dual_towers.GROUNDED)
def grounded(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("dino") / "dino"
    dual_towers.build_grounded(directory, request.param)
    task = open_task(TaskSpec(str(directory), DETECTION))
    yield task, directory
    task.close()


def grounded_reference(directory, image):
    """Return scores, labels and boxes of the library's own model and processor."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    images = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    processor = transformers.GroundingDinoProcessor(images, tokenizer)
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(directory).eval()
    inputs = processor(images=image, text=LABELS, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    size = [(image.height, image.width)]
    (boxes,) = processor.post_process_grounded_object_detection(
        outputs, threshold=0.0, target_sizes=size
    )
    of_tokens = outputs.logits[0].numpy()[:, [1, 3, 5, 6]]  # [CLS] cat . dog . an owl . [SEP]
    names = [[*LABELS, LABELS[2]][index] for index in of_tokens.argmax(1)]
    return boxes["scores"].numpy(), names, boxes["boxes"].numpy()


def test_boxes_of_labels_in_a_text_are_those_of_the_reference(grounded):
    task, directory = grounded
    picture = dual_towers.pictures()[2]
    scores, names, boxes = grounded_reference(directory, picture)
    (answer,) = task.run([(dual_towers.file_of(picture), json.dumps(LABELS), LOW, ALL)])
    rows = json.loads(answer[0])
    order = np.argsort(-scores, kind="stable")
    assert np.abs([each["score"] for each in rows] - scores[order]).max() < 1e-4
    assert np.abs(np.array([each["box"] for each in rows]) - boxes[order]).max() < 0.02
    assert [each["label"] for each in rows] == [names[index] for index in order]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ('["cat. dog"]', "labels without '.?', which separate"),
        (",".join(["cat"] * 12), "26 tokens, the model takes 24 together"),
        ("cat" * 600, "1801 characters"),
    ],
)
def test_labels_that_fit_no_text_are_refused(grounded, labels, told):
    (outcome,) = grounded[0].run([(dual_towers.file_of(dual_towers.pictures()[0]), labels)])
    assert isinstance(outcome, InvalidInputs)
    assert told in str(outcome)


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
