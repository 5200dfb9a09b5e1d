"""Vision towers in GGUF files beside their language models, against transformers."""

import numpy as np
import pytest

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import why_without_images
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.runtimes.default import reason_against
from tests.llm import seeing, seeing_gguf
from tests.llm.images.test_tower import FORMS, counted, expected, prepared, shaken

pytestmark = pytest.mark.torch

OPTIONS = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 8 << 20}
IMAGES = (seeing.image(1), seeing.image(2, 90, 30))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:  # files have a pattern of six layers
        patch.setitem(seeing.GEMMA_TEXT, "layer_types", ["sliding_attention"] * 2)
        return {kind: seeing.build(directory, kind) for kind in seeing_gguf.KINDS}


@pytest.fixture(scope="module")
def paths(sources, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gguf")
    return {kind: seeing_gguf.write(path, kind, directory / kind) for kind, path in sources.items()}


def check_vectors(source, path, tower, model=None):
    """Compare the vectors of images, and what their processors make of them, with transformers."""
    images = prepared(path, *IMAGES)
    for image, again in zip(images, prepared(source, *IMAGES), strict=True):
        assert np.array_equal(
            image.inputs["pixel_values"].array(), again.inputs["pixel_values"].array()
        )
    vectors = [expected(source, image, model) for image in images]
    for (_, rows), reference in zip(tower.compute(counted(images, vectors)), vectors, strict=True):
        assert np.abs(reference).max() > 0.1
        assert np.abs(rows - reference).max() < 2e-5


@pytest.mark.parametrize("matrices", ["F16", "Q8_0"])
def test_smaller_matrices_give_nearly_the_same_vectors(matrices, sources, tmp_path):
    kind = "smolvlm"
    path = seeing_gguf.write(sources[kind], kind, tmp_path / "small", matrices=matrices)
    images = prepared(path, *IMAGES)
    vectors = [expected(sources[kind], image) for image in images]
    tower = Tower.open(path, EngineConfig(dtype="f32"))
    for (_, rows), reference in zip(tower.compute(counted(images, vectors)), vectors, strict=True):
        assert np.linalg.norm(rows - reference) < 0.02 * np.linalg.norm(reference)


@pytest.mark.parametrize("kind", seeing_gguf.KINDS)
def test_a_language_model_with_its_tower_answers_as_transformers(kind, sources, paths):
    opened = open_model(paths[kind], "auto", make_config(OPTIONS))
    reference = seeing.Reference(sources[kind], kind)
    try:
        assert opened.runtime == "openvino"
        check_vectors(sources[kind], paths[kind], opened.tower, reference.model.model)
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        seeing.check(opened, reference, (IMAGES[0], "Is it as ", IMAGES[1], "?"), params)
        seeing.check(opened, reference, ("Is it?",), params)
    finally:
        opened.engine.close()


@pytest.mark.parametrize("form", ["three layers", "clipped matrices"])
def test_further_forms_of_towers_give_the_vectors_of_transformers(form, tmp_path, monkeypatch):
    kind, settings, of_tower = FORMS[form]
    prefix, text_model, more, processor = seeing.KINDS[kind]
    more = {**more, **settings, "vision_config": {**more["vision_config"], **of_tower}}
    monkeypatch.setitem(seeing.KINDS, kind, (prefix, text_model, more, processor))
    source = shaken(seeing.build(tmp_path, kind))
    path = seeing_gguf.write(source, kind, tmp_path / "gguf")
    check_vectors(source, path, Tower.open(path, EngineConfig(dtype="f32")))


def test_the_unknown_token_stands_for_images_where_there_is_no_other(tmp_path, monkeypatch):
    kind, unknown = "llava", 0
    template = "{% for message in messages %}user:{{ message['content'] }}{% endfor %}"
    monkeypatch.setattr(seeing, "IMAGE", unknown)
    monkeypatch.setattr(seeing, "TEMPLATE", template)
    monkeypatch.setitem(seeing_gguf.KINDS, kind, (*seeing_gguf.KINDS[kind][:2], "<unk>"))
    monkeypatch.setitem(seeing_gguf.MARKS, kind, {3: "<other>"})
    source = seeing.build(tmp_path, kind)
    opened = open_model(
        seeing_gguf.write(source, kind, tmp_path / "gguf"), "auto", make_config(OPTIONS)
    )
    try:
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        reference = seeing.Reference(source, kind)
        seeing.check(opened, reference, ("Is ", IMAGES[0], " as ", IMAGES[1], "?"), params)
    finally:
        opened.engine.close()


def test_towers_are_not_taken_for_models(paths):
    directory = paths["smolvlm"].parent
    assert find_gguf(directory) == directory / "model.gguf"
    with pytest.raises(StartError, match="is a vision tower: give the path of its language"):
        LLM(directory / "mmproj-model.gguf")


def test_the_default_runtime_of_a_model_with_a_tower_takes_images(paths):
    reason = reason_against(paths["smolvlm"], EngineConfig())
    assert reason == "the model takes images"
    assert reason_against(paths["smolvlm"], EngineConfig(max_images=0)) != reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("projector", "has projector_type 'idefics4', expected one of internvl, idefics3, gemma3"),
        ("family", "is for gemma3, and the model is 'llama'"),
        ("count", "there are several files of vision towers"),
        ("length", "mmproj-a.gguf"),
    ],
)
def test_a_model_with_an_unfit_tower_is_served_without_images(change, reason, paths, tmp_path):
    model, towers = tmp_path / "model.gguf", [tmp_path / "mmproj-a.gguf"]
    model.symlink_to(paths["smolvlm"])
    if change == "projector":
        content = paths["smolvlm"].with_name("mmproj-model.gguf").read_bytes()
        kind, other = (len(x).to_bytes(8, "little") + x for x in (b"idefics3", b"idefics4"))
        towers[0].write_bytes(content.replace(kind, other))
    elif change == "length":
        content = paths["smolvlm"].with_name("mmproj-model.gguf").read_bytes()
        towers[0].write_bytes(content[: len(content) // 2])
    elif change == "family":
        towers[0].symlink_to(paths[seeing.SEES_WHOLE].with_name("mmproj-model.gguf"))
    else:
        for tower in (*towers, tmp_path / "mmproj-b.gguf"):
            tower.symlink_to(paths["smolvlm"].with_name("mmproj-model.gguf"))
    assert reason in why_without_images(model)
    with LLM(tmp_path, "openvino", **OPTIONS) as llm:
        assert llm.generate("abc", use_tqdm=False)[0].outputs[0].token_ids
        with pytest.raises(InvalidInputs, match="the model reads no images"):
            llm.chat(seeing.chat(IMAGES[0]), use_tqdm=False)
