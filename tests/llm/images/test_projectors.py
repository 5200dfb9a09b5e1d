"""Vision towers that are chosen for a language model in a GGUF file, and files that are refused."""

import os
import shutil

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.checkpoint.gguf.projector import (
    choose_projector,
    find_projector,
    why_without_images,
)
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.tower import Tower
from tests.llm import seeing, seeing_gguf
from tests.llm.gguf_files import finish

pytestmark = pytest.mark.torch

OPTIONS = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 8 << 20}


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llava")
    return seeing_gguf.write(seeing.build(directory, "llava"), "llava", directory / "gguf")


@pytest.fixture
def alone(llava, tmp_path):
    """The language model without a tower beside it, and its tower under another name."""
    (tmp_path / "of_images").mkdir()
    model, tower = tmp_path / "words.gguf", tmp_path / "of_images" / "tower.gguf"
    os.link(llava, model)
    shutil.copy(llava.with_name("mmproj-model.gguf"), tower)
    return model, tower


def changed(path, metadata=None, tensors=None):
    """Write a GGUF file again with other values of `metadata` and `tensors`, None leaves out."""
    reader, metadata, tensors = GGUFReader(path), metadata or {}, tensors or {}
    writer = GGUFWriter(path.with_name("changed.gguf"), "clip")
    fields = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith(("GGUF.", "general.architecture"))
    }
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    for name, value in (fields | metadata).items():
        if value is not None:
            add[type(value)](name, value)
    arrays = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for name, values in (arrays | tensors).items():
        if values is not None:
            writer.add_tensor(name, values)
    return finish(writer)


def open_tower(model, path):
    choose_projector(model, str(path))
    try:
        Tower.open(model, EngineConfig(dtype="f32"))
    finally:
        choose_projector(model, None)


def test_a_chosen_tower_answers_as_the_same_tower_beside_the_model(llava, alone):
    model, tower = alone
    conversation = seeing.chat(seeing.image(1, 31, 64), "Is it?")
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(llava, **OPTIONS) as llm:
        expected = llm.chat(conversation, params, use_tqdm=False)[0].outputs[0]
    with LLM(model, mmproj=tower, **OPTIONS) as llm:
        chosen = llm.chat(conversation, params, use_tqdm=False)[0].outputs[0]
    assert chosen.token_ids == expected.token_ids
    with LLM(model, **OPTIONS) as llm, pytest.raises(InvalidInputs, match="reads no images"):
        llm.chat(conversation, use_tqdm=False)


def test_several_towers_beside_a_model_need_a_choice(llava, tmp_path):
    for name in ("model.gguf", "mmproj-a.gguf", "mmproj-b.gguf"):
        os.link(
            llava.with_name("mmproj-model.gguf") if "mmproj" in name else llava, tmp_path / name
        )
    model, tower = tmp_path / "model.gguf", tmp_path / "mmproj-b.gguf"
    assert find_projector(model) is None
    choose_projector(model, str(tower))
    assert find_projector(model).path == tower
    choose_projector(model, None)
    assert find_projector(model) is None


def test_a_model_beside_a_damaged_tower_is_served_without_images(llava, tmp_path):
    os.link(llava, tmp_path / "model.gguf")
    tower = changed(llava.with_name("mmproj-model.gguf"), {"clip.vision.patch_size": 0})
    shutil.move(tower, tmp_path / "mmproj-model.gguf")
    reason = why_without_images(tmp_path / "model.gguf")
    assert reason.endswith("clip.vision.patch_size 0, expected a size")
    with LLM(tmp_path, **OPTIONS) as llm:
        assert llm.generate("abc", use_tqdm=False)[0].outputs[0].token_ids


def test_a_model_with_a_tower_that_lacks_a_tensor_needs_no_images(llava, tmp_path):
    os.link(llava, tmp_path / "model.gguf")
    tower = changed(llava.with_name("mmproj-model.gguf"), {}, {"v.blk.0.ln1.weight": None})
    shutil.move(tower, tmp_path / "mmproj-model.gguf")
    with pytest.raises(StartError, match="no tensor .*; max_images=0 serves it for texts only"):
        LLM(tmp_path, **OPTIONS)
    with LLM(tmp_path, max_images=0, **OPTIONS) as llm:
        assert llm.generate("abc", use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.gguf", "which is not there, expected a GGUF file"),
        ("of_images", "which is a directory, expected a GGUF file"),
        ("words.gguf", "is of architecture 'llama', expected 'clip', that of vision towers"),
        ("text.gguf", "is no GGUF file: it begins with b'plain te'"),
        ("empty.gguf", "is empty"),
    ],
)
def test_a_file_that_is_no_tower_is_refused(name, reason, alone, tmp_path):
    (tmp_path / "text.gguf").write_text("plain text")
    (tmp_path / "empty.gguf").write_text("")
    with pytest.raises(StartError, match=reason):
        choose_projector(alone[0], str(tmp_path / name))


@pytest.mark.parametrize(
    ("metadata", "tensors", "reason"),
    [
        ({"clip.projector_type": "gemma3"}, {}, "is for gemma3, and the model is 'llama'"),
        ({"clip.projector_type": "resampler"}, {}, "has projector_type 'resampler', expected one"),
        ({}, {"mm.2.weight": np.ones((32, 64), np.float32)}, "has vectors of 32 numbers, and the "
         "model 64"),
        ({}, {"mm.2.weight": None}, "has vectors of None numbers, and the model 64"),
    ],
)  # fmt: skip
def test_a_tower_that_does_not_fit_the_model_is_refused(metadata, tensors, reason, alone):
    model, tower = alone
    path = changed(tower, metadata, tensors)
    with pytest.raises(StartError, match=f"mmproj is '.*', which {reason}"):
        choose_projector(model, str(path))


@pytest.mark.parametrize(
    ("metadata", "tensors", "reason"),
    [
        ({"clip.vision.block_count": 2**29}, {}, "tensor"),
        ({"clip.vision.block_count": 2**31}, {}, "block_count 2147483648, expected a size"),
        ({"clip.vision.image_size": None}, {}, "image_size None, expected a size"),
        ({"clip.vision.image_size": 30}, {}, "image_size 30, expected a multiple of patch_size 8"),
        ({"clip.vision.image_size": 2**20}, {}, "tensor"),
        ({"clip.vision.attention.head_count": 5}, {}, "embedding_length 32, expected a multiple"),
        ({"clip.vision.feature_layer": [9]}, {}, r"feature_layer \[9\], expected numbers up to 2"),
        ({"clip.vision.feature_layer": [-1] * 1000}, {}, "expected numbers up to 2"),
        ({"clip.vision.attention.layer_norm_epsilon": 2.0}, {}, "expected a small number"),
        ({}, {"v.blk.0.ln1.weight": None}, "no tensor"),
        ({}, {"v.patch_embd.weight": None}, "no tensor"),
        ({}, {"v.blk.0.attn_q.weight": np.ones((32, 16), np.float32)}, "expected"),
        ({}, {"v.position_embd.weight": np.ones((5, 32), np.float32)}, "expected"),
        ({}, {"mm.4.weight": np.ones((4, 4), np.float32)}, "has a tensor 'mm.4.weight', which"),
    ],
)
def test_a_damaged_tower_is_refused_in_a_sentence(metadata, tensors, reason, alone):
    model, tower = alone
    path = changed(tower, metadata, tensors)
    with pytest.raises(StartError, match=reason) as refusal:
        open_tower(model, path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "metadata", "tensors", "reason"),
    [
        ("llava-next", {"clip.vision.image_grid_pinpoints": [32, 33]}, {}, "expected pairs of"),
        ("llava-next", {"clip.vision.image_grid_pinpoints": [32] * 2000}, {}, "expected pairs of"),
        ("llava-next", {"clip.vision.image_grid_pinpoints": 7}, {}, "expected an array"),
        ("pixtral", {"clip.vision.attention.head_count": 32}, {}, "expected rows of 32 heads"),
        ("gemma4-images", {}, {"v.blk.0.attn_q.weight": np.ones((30, 32), np.float32)},
         "30 rows of queries, expected those of 4 heads"),
        ("gemma4-images", {}, {"v.position_embd.weight": np.ones((64, 32), np.float32)},
         r"position_embd\.weight \[64, 32\], expected \[2, positions, 32\]"),
        ("gemma4-images", {}, {"v.patch_embd.weight": np.ones((32, 48), np.float32)},
         r"of \[32, 48\], expected \[outputs, colours, rows, columns\]"),
        ("glm4v", {}, {"v.patch_embd.weight.1": np.ones((32, 3, 8, 4), np.float32)},
         r"of \[32, 3, 8, 4\], expected \[32, 3, 8, 8\]"),
    ],
)  # fmt: skip
def test_damaged_towers_of_other_kinds_are_refused(kind, metadata, tensors, reason, tmp_path):
    model = seeing_gguf.write(seeing.build(tmp_path, kind), kind, tmp_path / "gguf")
    path = changed(model.with_name("mmproj-model.gguf"), metadata, tensors)
    with pytest.raises(StartError, match=reason):
        open_tower(model, path)


def test_a_directory_takes_no_tower(alone, tmp_path):
    directory = seeing.build(tmp_path, "llava", "directory")
    with pytest.raises(StartError, match="is for a model in a GGUF file, and .* is a directory"):
        LLM(directory, mmproj=alone[1], **OPTIONS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mmproj": ""}, "mmproj is '', expected the path"),
        ({"mmproj": 3}, "mmproj"),
        ({"mmproj": "a.gguf", "max_images": 0}, "excludes max_images=0: leave out either"),
    ],
)
def test_options_that_name_no_usable_tower_are_refused(options, reason):
    with pytest.raises(InvalidInputs, match=reason):
        EngineConfig(**options)
