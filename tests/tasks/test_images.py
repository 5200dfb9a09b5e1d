"""Image classification, against what transformers' pipeline answers; and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import transformers
from PIL import Image

from mindspore_serving.core.tasks import TaskOptions, TaskSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.tasks.images import FORMATS, decode_image
from mindspore_serving.tasks.opening import OpenTask, open_task
from tests.tasks import checkpoints
from tests.tasks.checkpoints import encoded, picture

pytestmark = pytest.mark.torch
TASK = "image-classification"
ALL = np.array(0, np.int32)  # top_k


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    transformers.logging.disable_progress_bar()
    directory = tmp_path_factory.mktemp("images")
    for family in checkpoints.IMAGES:
        checkpoints.build_images(directory / family, family)
    yield directory
    transformers.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def vit(place: Path) -> Iterator[OpenTask]:
    task = opened(place / "vit")
    yield task
    task.close()


def opened(directory: Path, runtime: str = "", **options: Any) -> OpenTask:
    return open_task(TaskSpec(str(directory), TASK, runtime, options))


@pytest.mark.parametrize("family", checkpoints.IMAGES)
def test_pictures_get_the_labels_of_the_reference(place: Path, family: str) -> None:
    path = place / family
    task = opened(path)
    reference = transformers.pipeline(TASK, model=str(path), image_processor=str(path), top_k=7)
    pictures = [
        picture(50, 40),
        picture(64, 65, seed=1),
        picture(33, 90, seed=2).convert("L"),
        picture(64, 64, seed=3).convert("P"),
        picture(40, 40, seed=4).convert("RGBA"),
    ]
    answers = task.run([(encoded(one), ALL) for one in pictures])
    for (label, score, labels, scores), one in zip(answers, pictures, strict=True):
        wanted = reference(one.convert("RGB"))
        assert json.loads(labels) == [entry["label"] for entry in wanted]
        assert np.abs(scores - [entry["score"] for entry in wanted]).max() < 1e-4
        assert (label, score) == (wanted[0]["label"], scores[0])
    assert len({answer[1].item() for answer in answers}) == len(pictures)
    task.close()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind: str) -> None:
    flat = Image.new("RGB", (20, 10), (200, 100, 0))
    found = decode_image(encoded(flat, kind), TaskOptions())
    assert found.size == (20, 10)
    assert np.abs(np.array(found, int) - [200, 100, 0]).max() < 8


def test_the_first_of_several_pictures_is_taken_upright() -> None:
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    found = decode_image(encoded(red, "GIF", save_all=True, append_images=[blue]), TaskOptions())
    assert found.getpixel((0, 0)) == (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert decode_image(encoded(picture(30, 20), "JPEG", exif=exif), TaskOptions()).size == (20, 30)


def test_a_picture_may_be_an_array(vit: OpenTask) -> None:
    one = picture()
    bytes_of_it = np.frombuffer(encoded(one), np.uint8)
    answers = vit.run([(encoded(one),), (bytes_of_it,), (np.array(one),)])
    assert answers[0][2] == answers[1][2] == answers[2][2]
    assert np.allclose(answers[0][3], answers[2][3], atol=1e-6)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (b"", "image is no JPEG, PNG"),
        (b"%PDF-1.7", "image is no JPEG, PNG"),
        (encoded(picture(), "TIFF"), "image is no JPEG, PNG"),
        (encoded(picture())[:200], "image is broken"),
        (encoded(picture(), "JPEG")[:300], "image is broken"),
        ("text", "image is a text, expected the bytes of a file of JPEG"),
        ("", "image is empty"),
        (np.array(3, np.int32), "image is an array of int32"),
        (np.zeros((4, 4), np.uint8), "image is an array of uint8"),
        (np.zeros((4, 4, 4), np.uint8), r"image is an array \[4, 4, 4\], expected \[height, width"),
    ],
    ids=range(10),
)
def test_an_input_that_is_no_image_fails_alone(vit: OpenTask, image: Any, text: str) -> None:
    good, bad = vit.run([(encoded(picture()),), (image,)])
    assert good[0] in checkpoints.ANIMALS
    with pytest.raises(InvalidInputs, match=text):
        raise bad


def test_bytes_and_pixels_are_limited_before_anything_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = TaskOptions(max_image_bytes=1000, max_image_pixels=10_000)
    bomb = encoded(Image.new("1", (4000, 4000)), "PNG", optimize=True)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(InvalidInputs, match=r"image has 2,\d+ bytes, expected at most 1,000"):
        decode_image(bomb, options)
    larger = TaskOptions(max_image_pixels=10_000)
    with pytest.raises(
        InvalidInputs, match="image has 4000 x 4000 pixels, expected at most 10,000"
    ):
        decode_image(bomb, larger)
    with pytest.raises(InvalidInputs, match="image has 200 x 100 pixels"):
        decode_image(np.zeros((100, 200, 3), np.uint8), larger)


def test_a_picture_of_pixels_beyond_the_librarys_own_limit_is_refused() -> None:
    header = bytearray(encoded(Image.new("L", (1, 1)), "BMP"))
    header[18:26] = (30_000).to_bytes(4, "little") * 2
    with pytest.raises(
        InvalidInputs, match="image has too many pixels, expected at most 32,000,000"
    ):
        decode_image(bytes(header), TaskOptions())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda path: (path / "preprocessor_config.json").unlink(), "no preprocessor_config.json"),
        (lambda path: (path / "preprocessor_config.json").write_text("{"), "cannot be used"),
        (lambda path: (path / "config.json").unlink(), "has no config.json"),
        (
            lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
            "transformers cannot load .* for image-classification",
        ),
        (
            lambda path: change_json(path / "config.json", id2label={"0": "cat"}),
            "1 labels, but the checkpoint's classifier has 7|ignore_mismatched_sizes",
        ),
        (
            lambda path: change_json(path / "config.json", hidden_size=64),
            "transformers cannot load",
        ),
        (
            lambda path: change_json(path / "config.json", quantization_config={"bits": 4}),
            "is quantised; take the model's float checkpoint",
        ),
    ],
    ids=range(7),
)
def test_a_directory_that_is_incomplete_or_contradicts_itself_is_refused(
    tmp_path: Path, change: Any, text: str
) -> None:
    path = checkpoints.build_images(tmp_path / "vit", "vit")
    change(path)
    with pytest.raises(StartError, match=text):
        opened(path)


def test_images_have_a_single_runtime(place: Path) -> None:
    with pytest.raises(StartError, match="runtime is 'openvino', expected transformers for images"):
        opened(place / "vit", "openvino")
    with pytest.raises(StartError, match="runtime 'transformers' has no quantization"):
        opened(place / "vit", quantization="int8")


def change_json(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
