"""Models with towers for texts and images, against transformers."""

import base64
import json

import numpy as np
import pytest

from mindspore_serving.core.declaration import Declaration, LanguageSpec
from mindspore_serving.errors import InvalidInputs, Overloaded, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.pooler import PromptText
from mindspore_serving.llm.images.messages import MediaSource
from mindspore_serving.llm.images.reader import open_reader, to_arrays
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.worker.default_method import add_default_method
from tests.llm import dual_towers

pytestmark = pytest.mark.torch
BOUND = 1e-4


@pytest.fixture(scope="module", params=dual_towers.FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory, family):
    return dual_towers.build(tmp_path_factory.mktemp("dual") / family, family)


@pytest.fixture(scope="module")
def opened(directory):
    opened, engine = open_ours(directory, "auto", EngineConfig())
    yield opened
    engine.close()


@pytest.fixture(scope="module")
def reference(directory, family):
    return dual_towers.Reference(directory, family)


@pytest.fixture(scope="module")
def texts(opened):
    return [PromptText(opened.tokenizer.encode(text)) for text in dual_towers.TEXTS]


@pytest.fixture(scope="module")
def images(opened):
    return [PromptText([], image=to_arrays(each)) for each in read(opened)]


def read(opened):
    reader = open_reader(opened.directory, opened.tokenizer, EngineConfig())
    files = [dual_towers.file_of(picture) for picture in dual_towers.pictures()]
    uris = ["data:image/png;base64," + base64.b64encode(file).decode() for file in files]
    return reader.read([MediaSource("input", uri) for uri in uris])


def run(engine, prompts):
    """Add all prompts, and compute steps until each has its vector."""
    for index, prompt in enumerate(prompts):
        more = {} if prompt.image is None else {"image": prompt.image}
        engine.add_embedding(str(index), prompt.ids, **more)
    vectors = {}
    while engine.has_work:
        vectors.update(engine.step())
    return np.stack([vectors[str(index)] for index in range(len(prompts))])


def test_images_of_odd_sizes_have_the_vectors_of_the_reference(opened, images, reference):
    expected = reference.images(dual_towers.pictures())
    assert np.abs(run(opened.engine, images) - expected).max() < BOUND
    assert np.abs(expected @ expected.T - 1 + np.eye(len(expected))).max() > 0.1, "all are alike"


def test_texts_have_the_vectors_of_the_reference(opened, texts, reference):
    expected = reference.texts(dual_towers.TEXTS)
    assert np.abs(run(opened.engine, texts) - expected).max() < BOUND


def test_texts_and_images_of_several_requests_keep_their_order(opened, texts, images, reference):
    mixed = [images[0], texts[0], images[1], images[2], texts[1], texts[2]]
    seen, words = reference.images(dual_towers.pictures()), reference.texts(dual_towers.TEXTS)
    expected = np.stack([seen[0], words[0], seen[1], seen[2], words[1], words[2]])
    assert np.abs(run(opened.engine, mixed) - expected).max() < BOUND


def test_a_model_is_described_to_front_ends(opened):
    card = opened.card()
    assert (card.can_embed, card.takes_images, card.can_generate) == (True, True, False)
    assert (card.runtime, card.max_model_len) == ("torch", 16)


def test_vectors_can_be_left_unscaled(opened, texts):
    text = texts[0]
    raw = opened.engine.encoder.compute([PromptText(text.ids, normalizes=False)])[0]
    unit = opened.engine.encoder.compute([text])[0]
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    assert np.allclose(raw / np.linalg.norm(raw), unit, atol=1e-6)


def test_waiting_images_are_bounded_by_their_memory(directory, images):
    opened, engine = open_ours(directory, "torch", EngineConfig(max_num_waiting_tokens=60))
    size = sum(array.nbytes for array in images[0].image.values())
    fitting = 60 // (1 + size // 256)
    for index in range(fitting):
        engine.add_embedding(str(index), [], image=images[0].image)
    with pytest.raises(Overloaded):
        engine.add_embedding("last", [], image=images[0].image)
    assert fitting
    engine.close()


def test_a_text_of_too_many_tokens_is_refused(opened):
    with pytest.raises(InvalidInputs, match="17"):
        opened.engine.add_embedding("long", [3] * 17)


def test_another_runtime_is_refused(directory):
    with pytest.raises(StartError, match="runtime is 'openvino', expected one of torch"):
        open_ours(directory, "openvino", EngineConfig())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: (path / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda path: (path / "model.safetensors").unlink(), "transformers cannot load"),
        (lambda path: set_field(path, "logit_scale_init_value", "x"), "transformers cannot load"),
    ],
)
def test_a_broken_directory_is_refused(tmp_path, change, told):
    path = dual_towers.build(tmp_path / "clip", "clip")
    change(path)
    with pytest.raises(StartError, match=told):
        open_ours(path, "auto", EngineConfig())


def set_field(path, name, value):
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))


def test_a_model_without_images_needs_no_image_processor(tmp_path):
    path = dual_towers.build(tmp_path / "clip", "clip")
    (path / "preprocessor_config.json").unlink()
    declaration = Declaration("clip")
    spec = LanguageSpec(str(path), "auto", {"max_images": 0})
    add_default_method(declaration, spec)
    assert declaration.language is not None
    assert not declaration.methods
    opened, engine = open_ours(path, "auto", EngineConfig(max_images=0))
    assert not opened.card().takes_images
    assert engine.encoder.embed([[3, 4]]).shape == (1, 24)
    engine.close()
