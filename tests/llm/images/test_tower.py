"""Vision towers: graphs against transformers, and images of several requests computed together."""

import dataclasses
import inspect
import threading

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.leftovers import IMAGES
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.reader import MessageArray, PreparedImage, open_processor
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.serving.preparation import Preparation
from tests.llm import seeing
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.torch

SAME = ("llava-qwen2", "internvl-qwen3", "ministral3-images")  # as towers of other kinds
GRAPHS = tuple(kind for kind in seeing.KINDS if kind not in SAME)
FORMS = {  # kind, and what differs in its configuration, and in that of its tower
    "the last layer": ("llava", {"vision_feature_layer": -1}, {}),
    "three layers": ("llava", {"vision_feature_layer": [-3, 1, 0]}, {}),
    "the class token": ("llava", {"vision_feature_select_strategy": "full"}, {}),
    "norms of queries": ("internvl", {}, {"use_qk_norm": True, "norm_type": "rms_norm"}),
    "a norm behind the layers": ("internvl", {}, {"use_mean_pooling": False}),
    "the last layer but one": ("internvl", {"vision_feature_layer": -2}, {}),
    "two layers": ("pixtral", {"vision_feature_layer": [-1, -2]}, {}),
    "squares of 2 x 2 patches": ("minicpm-v", {"downsample_mode": "4x"}, {}),
    "clipped matrices": (
        "gemma4-images", {}, {"use_clipped_linears": True, "standardize": True},
    ),
}  # fmt: skip


def prepared(directory, *images):
    """Return the images as a tower takes them."""
    processor, results = open_processor(directory), []
    options = find_prompt_format(find_config(directory)).options
    for number, image in enumerate(images):
        arrays = processor([image], return_tensors="np", **options).items()
        inputs = {name: MessageArray.of(x) for name, x in arrays if isinstance(x, np.ndarray)}
        results.append(PreparedImage(bytes([number]), "", 0, inputs))
    return results


def shaken(directory):
    """Return the model after noise on every tensor of the tower, also those that begin as ones.

    Bounds of clipped values, which are infinite, become some of both signs.
    """
    file, rng = directory / "model.safetensors", np.random.default_rng(1)
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if "language_model" not in name and IMAGES.has(name, ()):
            noise = rng.normal(0, 0.1, tensor.shape).astype(np.float32)
            centre = np.sign(tensor) if np.isinf(tensor).any() else tensor
            tensors[name] = np.asarray(centre + noise)
    save_file(tensors, file, {"format": "pt"})
    return directory


def load_reference(directory):
    return transformers.AutoModelForImageTextToText.from_pretrained(directory).eval().model


def expected(directory, image, model=None):
    """Return the vectors that transformers computes."""
    model = model or load_reference(directory)
    known = inspect.signature(model.get_image_features).parameters
    inputs = {name: torch.tensor(x.array()) for name, x in image.inputs.items() if name in known}
    with torch.inference_mode():
        features = model.get_image_features(**inputs, return_dict=True)
    deeper = getattr(features, "deepstack_features", None) or ()
    levels = [torch.cat(list(level)) for level in (features.pooler_output, *deeper)]
    return torch.cat(levels, -1).flatten(0, -2).numpy()


def counted(images, vectors):
    """Return the images with the numbers of their vectors."""
    pairs = zip(images, vectors, strict=True)
    return [
        PreparedImage(image.digest, image.text, len(rows), image.inputs) for image, rows in pairs
    ]


def check(directory, config, near):
    """Compare images of several sizes, computed by a graph together, with transformers."""
    sizes = ((50, 40), (90, 30), (31, 64), (64, 31), (50, 40), (161, 119))
    images = prepared(directory, *(seeing.image(n, *size) for n, size in enumerate(sizes)))
    model = load_reference(directory)
    vectors = [expected(directory, image, model) for image in images]
    tower = Tower.open(directory, config, "openvino")
    computed = tower.compute(counted(images, vectors))
    assert type(tower._pass).__name__ in ("TileTower", "PatchTower")
    for (_, result), reference in zip(computed, vectors, strict=True):
        assert np.abs(reference).max() > 0.1
        assert np.linalg.norm(result - reference) < near * np.linalg.norm(reference)


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_compute_the_vectors_of_transformers(kind, tmp_path):
    check(shaken(seeing.build(tmp_path, kind)), EngineConfig(dtype="f32"), 4e-6)


@pytest.mark.parametrize("form", FORMS)
def test_graphs_follow_the_configuration(form, tmp_path, monkeypatch):
    kind, more, vision = FORMS[form]
    prefix, text, fields, processor = seeing.KINDS[kind]
    fields = {**fields, **more, "vision_config": {**fields["vision_config"], **vision}}
    monkeypatch.setitem(seeing.KINDS, kind, (prefix, text, fields, processor))
    check(shaken(seeing.build(tmp_path, kind)), EngineConfig(dtype="f32"), 4e-6)


@pytest.mark.parametrize("kind", ["llava", "qwen2.5-vl", "gemma4-images"])
def test_graphs_have_the_precision_of_the_language_model(kind, tmp_path):
    if "BF16" not in capabilities():
        pytest.skip("the processor has no bf16")
    directory = seeing.build(tmp_path, kind)
    check(directory, EngineConfig(), 2e-2)
    with pytest.raises(AssertionError):
        check(directory, EngineConfig(), 2e-6)


def test_a_tensor_that_a_graph_does_not_have_is_refused(tmp_path):
    directory = seeing.build(tmp_path, "llava")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    stem = next(name for name in tensors if "layers.0.mlp.fc1.weight" in name and "vision" in name)
    extra = stem.replace("fc1.weight", "gate.weight")
    save_file(tensors | {extra: np.ones(4, np.float32)}, file, {"format": "pt"})
    with pytest.raises(StartError, match=r"mlp\.gate\.weight', which its vision tower lacks"):
        Tower.open(directory, EngineConfig(), "openvino")
    save_file({**tensors, stem: tensors[stem][:, :-1].copy()}, file, {"format": "pt"})
    with pytest.raises(StartError, match=r"fc1\.weight' is \[48, 31\], expected \[48, 32\]"):
        Tower.open(directory, EngineConfig(), "openvino")


class Watched:
    """A tower's computation that records the sizes of batches, waits, and refuses white images."""

    def __init__(self, computation):
        self.names = computation.names
        self.batches = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self._run = computation.run

    def run(self, images):
        self.batches.append(len(images))
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        if any(len(np.unique(image["pixel_values"])) <= 3 for image in images):
            raise ServingError("an image is white")
        return self._run(images)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    directory = seeing.build(tmp_path_factory.mktemp("towers"), "llava")
    memory = {"kv_cache_memory": 8 << 20, "preparation_timeout": PATIENCE}
    model = open_model(directory, "openvino", make_config({"dtype": "f32", **memory}))
    yield model
    model.engine.close()


@pytest.fixture
def watched(opened):
    config = opened.config
    tower = Tower.open(opened.directory, config, "openvino")
    tower._pass = Watched(tower._pass)
    return tower


def request(*images):
    return Generate(messages=seeing.chat("What is ", *images, " there?"))


WHITE = seeing.image(9).point(lambda _: 255)


def test_images_of_several_requests_are_computed_together_and_once(opened, watched):
    watched._pass.gate.set()
    images = counted(
        prepared(opened.directory, *(seeing.image(n) for n in range(4)), WHITE), [range(16)] * 5
    )
    results = watched.compute_all([images[:2], [images[1]], [], images[1:4], images[3:]])
    # All five together fail, then each is computed by itself.
    assert watched._pass.batches == [5, 1, 1, 1, 1, 1]
    assert isinstance(results[4], ServingError)
    digests = [[digest for digest, _ in result] for result in results[:4]]
    assert digests == [[b"\0", b"\1"], [b"\1"], [], [b"\1", b"\2", b"\3"]]
    again = watched.compute(images[:4])
    assert watched.num_computed == 4
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(again, results[0], strict=False))


def test_batches_and_the_cache_are_bounded(opened, watched):
    images = counted(
        prepared(opened.directory, *(seeing.image(n) for n in range(5))), [range(16)] * 5
    )
    size = len(images[0].inputs["pixel_values"].content)
    tower = Tower(watched._pass, max_bytes=2 * 16 * 64 * 4, max_batch_bytes=2 * size + 1)
    tower._pass.gate.set()
    vectors = tower.compute(images)
    assert tower._pass.batches == [2, 2, 1]
    assert [len(rows) for _, rows in vectors] == [16] * 5
    tower.compute(images[3:])  # the newest two are cached
    assert tower.num_computed == 5
    tower.compute(images[:1])
    assert tower.num_computed == 6


def test_waiting_requests_share_a_batch_without_cancelled_requests(opened, watched):
    processor = Processor(
        opened.tokenizer, opened.chat_template, opened.card(), images=opened.images, tower=watched
    )
    taken, failed = {}, {}
    preparing = Preparation(opened, opened.card(), processor, failed.__setitem__)

    def start(name, *images):
        asked = request(*images)

        def take(read):
            taken[name] = processor.complete(asked, read).options["images"]

        preparing.start(name, asked, take)

    def num_waiting():
        return len(preparing._unseen)

    try:
        start("first", seeing.image(1))
        assert watched._pass.entered.wait(PATIENCE)
        requests = {
            "same": [seeing.image(1)],
            "second": [seeing.image(2)],
            "third": [seeing.image(2), seeing.image(3)],
            "cancelled": [seeing.image(4)],
            "white": [WHITE],
        }
        for number, (name, images) in enumerate(requests.items(), 1):
            start(name, *images)
            eventually(lambda count=number: num_waiting() == count)
        preparing.cancel("cancelled")
        watched._pass.gate.set()
        eventually(lambda: len(taken) + len(failed) == 5)
    finally:
        preparing.close()
    assert list(taken) == ["first", "same", "second", "third"]
    assert {name: str(error) for name, error in failed.items()} == {"white": "an image is white"}
    # Two new ones and the white one together, then each alone.
    assert watched._pass.batches == [1, 3, 1, 1, 1]
    assert watched.num_computed == 3
    reference = Tower.open(opened.directory, dataclasses.replace(opened.config), "openvino")
    plain = Processor(
        opened.tokenizer, opened.chat_template, opened.card(), images=opened.images, tower=reference
    )
    alone = plain.prepare(request(seeing.image(2), seeing.image(3))).options["images"]
    first, second = (x.between(0, 1000).vectors for x in (alone, taken["third"]))
    assert np.abs(first - second).max() < 1e-5


def test_towers_without_a_graph_run_on_torch_and_the_log_names_them(tmp_path, monkeypatch, capfd):
    prefix, text, fields, processor = seeing.KINDS["llava-siglip"]
    more = fields | {"vision_feature_select_strategy": "default"}  # leaves out a patch
    monkeypatch.setitem(seeing.KINDS, "llava-siglip", (prefix, text, more, processor))
    directory = seeing.build(tmp_path, "llava-siglip")
    (image,) = prepared(directory, seeing.image(1))
    vectors = expected(directory, image)
    tower = Tower.open(directory, EngineConfig(), "openvino")
    ((_, computed),) = tower.compute(counted([image], [vectors]))
    assert np.abs(computed - vectors).max() < 1e-5
    assert "llava-siglip: images run on torch in float32" in capfd.readouterr().err
