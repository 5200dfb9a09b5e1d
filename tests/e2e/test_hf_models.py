"""Directories of Hugging Face models behind a real server: bare ones, and as stages."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino")

import openai

from mindspore_serving.core.tasks import TaskSpec
from mindspore_serving.tasks.opening import open_task
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.tasks import checkpoints
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.torch]
CLASSIFIER = ("bert", "ForSequenceClassification")
BETWEEN_STAGES = '''
pets = register.declare_hf_model("../pets", top_k=2)
mood = register.declare_hf_model("../mood", truncate=True)

def crop(image):
    """bytes to an array [20, 20, 3]"""
    import io
    from PIL import Image
    picture = Image.open(io.BytesIO(image.tobytes())).convert("RGB")
    return np.array(picture.crop((0, 0, 20, 20)))

def ask(label):
    return f"I love my {label}"

def describe(label, mood, score):
    return f"{label}: {mood} {score:.3f}"

@register.register_method(output_names=["text", "labels"])
def describe_pet(image):
    cropped = register.add_stage(crop, image, outputs_count=1)
    label, _, labels = register.add_stage(pets, cropped, outputs_count=3)
    question = register.add_stage(ask, label, outputs_count=1)
    found, score = register.add_stage(mood, question, outputs_count=2)
    return register.add_stage(describe, label, found, score, outputs_count=1), labels
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    checkpoints.build(directory / "mood", *CLASSIFIER, labels=checkpoints.SENTIMENTS)
    checkpoints.build(directory / "fill", "roberta", "ForMaskedLM")
    checkpoints.build_images(directory / "pets", "vit")
    write_servable(directory, "both", BETWEEN_STAGES)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    servables = [config(place, name) for name in ("mood", "fill", "both")]
    with serving(place, *servables) as found:
        yield found


@pytest.fixture(scope="module")
def mood(place: Path) -> Iterator[Any]:
    task = open_task(TaskSpec(str(place / "mood"), "text-classification"))
    yield lambda *row: task.run([row])[0]
    task.close()


def assert_answer(answer: dict[str, Any], wanted: Any) -> None:
    label, score, labels, scores = wanted
    assert (answer["label"], answer["labels"]) == (label, labels)
    assert answer["score"] == pytest.approx(float(score), abs=1e-5)
    assert np.abs(np.array(answer["scores"]) - scores).max() < 1e-5


def test_a_text_and_a_pair_are_answered_by_grpc_and_rest(calls: Calls, mood: Any) -> None:
    instances = [
        {"text": "A wonderful film"},
        {"text": "A film", "text_pair": "about a fox"},
        {"text": "lazy dogs", "top_k": 1},
    ]
    wanted = [
        mood("A wonderful film"),
        mood("A film", "about a fox"),
        mood("lazy dogs", "", np.array(1, np.int32)),
    ]
    by_grpc = calls.client("mood", "predict").infer(instances)
    by_rest = calls.post("mood", "predict", instances)["instances"]
    for answers in (by_grpc, by_rest):
        for answer, expected in zip(answers, wanted, strict=True):
            assert_answer(answer, expected)


def test_a_bad_instance_leaves_good_instances_answered(calls: Calls, mood: Any) -> None:
    instances = [{"text": "good"}, {"text": ""}, {"text": 7}, {"text": "x " * 999}, {"text": "bad"}]
    answers = calls.post("mood", "predict", instances)["instances"]
    assert_answer(answers[0], mood("good"))
    assert_answer(answers[4], mood("bad"))
    texts = [answer["error_msg"] for answer in answers[1:4]]
    for text, expected in zip(
        texts, ["text is empty", "text is 7, expected a text", "set truncate"], strict=True
    ):
        assert expected in text
    (answer,) = calls.post("mood", "predict", [{"text": "x " * 999, "truncate": True}])["instances"]
    assert answer["label"] in checkpoints.SENTIMENTS
    missing = calls.post("mood", "predict", [{"words": "x"}])
    assert "text" in missing["error_msg"]


def test_many_clients_with_texts_of_many_lengths_each_get_their_own(
    calls: Calls, mood: Any
) -> None:
    texts = [(text * 3)[: 5 + 7 * number] for number in range(8) for text in checkpoints.TEXTS[:3]]

    def ask(text: str) -> Any:
        return calls.post("mood", "predict", [{"text": text}])["instances"][0]

    with ThreadPoolExecutor(12) as pool:
        for text, answer in zip(texts, pool.map(ask, texts), strict=True):
            assert_answer(answer, mood(text))


def test_a_masked_language_model_fills_masks_and_embeds(calls: Calls, place: Path) -> None:
    task = open_task(TaskSpec(str(place / "fill"), "fill-mask"))
    ((filled, tokens, scores),) = task.run([("Anna flew to <mask>.",)])
    task.close()
    (answer,) = calls.client("fill", "predict").infer({"text": "Anna flew to <mask>."})
    assert (answer["text"], answer["tokens"]) == (filled, tokens)
    assert np.abs(answer["scores"] - scores).max() < 1e-5

    features = open_task(TaskSpec(str(place / "fill"), "feature-extraction"))
    ((vector,),) = features.run([("Anna flew",)])
    features.close()
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        found = client.embeddings.create(model="fill", input="Anna flew").data[0].embedding
    assert np.abs(np.array(found) - vector).max() < 1e-5


def test_models_are_stages_between_functions(calls: Calls, place: Path, mood: Any) -> None:
    picture = checkpoints.picture(60, 60)
    task = open_task(TaskSpec(str(place / "pets"), "image-classification"))
    cropped = np.array(picture.crop((0, 0, 20, 20)))
    ((label, _, labels, _),) = task.run([(cropped, np.array(2, np.int32))])
    task.close()
    found, score, *_ = mood(f"I love my {label}")
    image = checkpoints.encoded(picture)
    wanted = {"text": f"{label}: {found} {score:.3f}", "labels": labels}
    in_json = [{"image": {"b64": base64.b64encode(image).decode()}}]
    assert calls.client("both", "describe_pet").infer({"image": image}) == [wanted]
    assert calls.post("both", "describe_pet", in_json) == {"instances": [wanted]}
    assert len(json.loads(labels)) == 2


def test_types_of_inputs_and_outputs_are_published(calls: Calls) -> None:
    servables = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    (found,) = [one["methods"]["predict"] for one in servables if one["name"] == "mood"]
    specs = [
        {name: spec[name] for name in spec if name != "example"} for spec in found["input_specs"]
    ]
    assert specs == [
        {"name": "text", "dtype": "str", "shape": []},
        {"name": "text_pair", "dtype": "str", "shape": [], "optional": True},
        {"name": "top_k", "dtype": "int32", "shape": [], "optional": True},
        {"name": "truncate", "dtype": "bool", "shape": [], "optional": True},
    ]
    assert [spec["dtype"] for spec in found["output_specs"]] == ["str", "float32", "str", "float32"]
    (answer,) = calls.post("mood", "predict", [{"text": "x", "top_k": 2.0}])["instances"]
    assert len(json.loads(answer["labels"])) == 2
