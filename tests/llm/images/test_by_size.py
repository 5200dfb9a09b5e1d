"""Images with tokens and positions by their size: Qwen-VL models and similar ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.messages import find_media
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.qwen_formats import rope_positions
from mindspore_serving.llm.images.reader import open_reader
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.quantize import quantize
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm import lora_files, seeing
from tests.llm.torch_graph import Capture

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FIRST, SECOND = seeing.image(1), seeing.image(2, 90, 30)
CHAT = ("What is ", FIRST, " beside ", SECOND, "?")
COUNT = 12
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
SMALL = {"kv_cache_memory": 4 << 20, "dtype": "f32", "kv_cache_dtype": "f32"}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    parent = tmp_path_factory.mktemp("by_size")
    return {kind: seeing.build(parent, kind) for kind in ("qwen2-vl", "qwen3-vl", "qwen3-vl-moe")}


@pytest.fixture(scope="module")
def references(directories):
    return {kind: seeing.Reference(path, kind) for kind, path in directories.items()}


def answers(llm, *chats):
    outputs = llm.chat([seeing.chat(*chat) for chat in chats], GREEDY, use_tqdm=False)
    return [(each.prompt_token_ids, list(each.outputs[0].token_ids)) for each in outputs]


def expected(reference, ids, chat=CHAT):
    return reference.greedy(ids, [part for part in chat if not isinstance(part, str)], COUNT)


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_positions_are_those_of_transformers(references) -> None:
    model, draw = references["qwen2-vl"].model.model, np.random.default_rng(3)
    for _ in range(20):
        grids = [(1, *map(int, draw.integers(1, 6, 2))) for _ in range(draw.integers(1, 4))]
        kinds = [0] * int(draw.integers(1, 4))
        for grid in grids:
            kinds += [1] * int(np.prod(grid)) + [0] * int(draw.integers(1, 4))
        tokens = [i for i, kind in enumerate(kinds) if kind]
        patches = torch.tensor([[1, 2 * height, 2 * width] for _, height, width in grids])
        positions, offset = model.get_rope_index(
            torch.tensor([kinds]), torch.tensor([kinds]), image_grid_thw=patches
        )
        computed = rope_positions(len(kinds), tokens, [(grid, 1.0) for grid in grids])
        assert computed.tolist() == positions[:, 0].T.tolist()
        vectors = np.zeros((len(tokens), 4), np.float32)
        images = PromptImages(tokens, [(b"a", vectors)], rope_positions=computed)
        after = images.rope_positions(len(kinds) - 1, len(kinds) + 2)
        assert after is not None
        assert after[1:].tolist() == [[len(kinds) + int(offset) + i] * 3 for i in range(2)]


def test_text_positions_are_equal_in_all_parts() -> None:
    assert rope_positions(4, (), ()).tolist() == [[i] * 3 for i in range(4)]


@pytest.mark.parametrize("runtime", ["openvino", "torch", "native"])
def test_drafts_by_prompt_lookup_change_no_answer(runtime, directories, references) -> None:
    options = {**SMALL, "num_speculative_tokens": 3, "adaptive_speculation": False}
    chat = ("aaaa aaaa aaaa", FIRST, "aaaa aaaa aaaa", SECOND, "aaaa aaaa")
    with LLM(directories["qwen3-vl"], runtime, **options) as llm:
        ((ids, tokens),) = answers(llm, chat)
        assert llm.stats().num_draft_tokens > 0
    assert tokens == expected(references["qwen3-vl"], ids, chat)


def test_decoding_graphs_go_on_after_the_positions_of_images(directories, references) -> None:
    """They are recorded and repeated by a substitute on a CPU."""
    options = {**SMALL, "block_size": 8, "num_speculative_tokens": 0}
    opened = open_model(directories["qwen3-vl"], "torch", make_config(options))
    capture = Capture()
    try:
        opened.engine.runner.use_graphs(capture, 4)
        processor = Processor(
            opened.tokenizer, opened.chat_template, opened.card(),
            images=opened.images, tower=opened.tower,
        )  # fmt: skip
        prepared = processor.prepare(Generate(messages=seeing.chat(*CHAT), params=GREEDY))
        prepared.add_to(opened.engine, "1")
        tokens = []
        while opened.engine.has_work:
            tokens += [token for _, each in opened.engine.step() for token in each.token_ids]
    finally:
        opened.engine.close()
    assert sum(capture.runs) >= COUNT - 1
    assert tokens == expected(references["qwen3-vl"], prepared.prompt_ids)


def test_an_image_with_too_many_tokens_is_refused_before_work(directories, monkeypatch) -> None:
    path = directories["qwen2-vl"]
    reader = open_reader(path, Tokenizer.open(path), EngineConfig(max_model_len=10))
    monkeypatch.setattr(type(reader._processor), "_preprocess", None)
    with pytest.raises(InvalidField) as refused:
        reader.read(find_media(seeing.chat(seeing.image(5, 64, 64))))
    assert str(refused.value).endswith(
        "cannot be prepared: 64 x 64 pixels become 16 tokens, and the model has 10 for prompt and "
        "answer; expected a smaller image"
    )


def test_images_that_exceed_the_model_together_are_refused(directories) -> None:
    options = {**SMALL, "max_model_len": 40}
    with (
        LLM(directories["qwen2-vl"], "torch", **options) as llm,
        pytest.raises(InvalidInputs, match="tokens"),
    ):
        answers(llm, [FIRST] * 8)


def test_a_very_thin_image_is_refused(directories) -> None:
    path = directories["qwen2-vl"]
    reader = open_reader(path, Tokenizer.open(path), EngineConfig())
    with pytest.raises(InvalidField, match="absolute aspect ratio must be smaller than 200"):
        reader.read(find_media(seeing.chat(seeing.image(5, 900, 3))))


def flattened(source: Path, target: Path) -> Path:
    """The files as in the first releases.

    The settings of the text model are at the top, and sections are of the kind mrope.
    """
    path = copy(source, target)
    config = json.loads((path / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    vision = {**config["vision_config"], "model_type": "qwen2_vl"}
    config = {**text, **config, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    (path / "config.json").write_text(json.dumps({**config, "vision_config": vision}))
    return path


def test_files_of_the_first_releases_are_read(directories, references, tmp_path: Path) -> None:
    with LLM(flattened(directories["qwen2-vl"], tmp_path / "model"), "torch", **SMALL) as llm:
        ((ids, tokens),) = answers(llm, CHAT)
    assert tokens == expected(references["qwen2-vl"], ids)


@pytest.mark.parametrize("runtime", ["openvino", "torch", "native"])
def test_an_adapter_changes_the_text_part(runtime, directories, tmp_path: Path) -> None:
    model = flattened(directories["qwen2-vl"], tmp_path / "model")
    tensors = lora_files.adapter(model, ("self_attn.q_proj", "mlp.down_proj"), seed=3)
    adapter = lora_files.write(tmp_path / "adapter", tensors)
    merged = seeing.Reference(lora_files.merged(model, tensors, tmp_path / "merged"), "qwen2-vl")
    with LLM(model, runtime, **SMALL, adapters={"a": str(adapter)}) as llm:
        (answer,) = llm.chat(seeing.chat(*CHAT), GREEDY, use_tqdm=False, adapter="a")
    ids, tokens = answer.prompt_token_ids, list(answer.outputs[0].token_ids)
    assert tokens == expected(merged, ids)
    assert tokens != expected(seeing.Reference(model, "qwen2-vl"), ids)


@pytest.mark.parametrize("mode", ["int8", "float16"])
def test_a_quantised_model_keeps_its_tower(mode, directories, tmp_path: Path) -> None:
    source, target = directories["qwen2-vl"], tmp_path / mode
    quantize(source, target, mode)
    config = EngineConfig()
    reader = open_reader(source, Tokenizer.open(source), config)
    images = reader.read(find_media(seeing.chat(FIRST)))
    ((_, before),), ((_, after),) = (
        Tower.open(each, config).compute(images) for each in (source, target)
    )
    assert before.tolist() == after.tolist()
    with LLM(target, "torch", **SMALL) as llm:
        ((ids, tokens),) = answers(llm, CHAT)
    assert seeing.IMAGE in ids
    assert len(tokens) == COUNT


def test_files_with_the_later_names_of_tensors_are_read(
    directories, references, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    path = copy(directories["qwen2-vl"], tmp_path / "model")
    before = {"model.": "model.language_model.", "visual.": "model.visual."}
    tensors = {
        next((new + name.removeprefix(old) for old, new in before.items() if name.startswith(old)),
             name): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }  # fmt: skip
    assert "model.visual.patch_embed.proj.weight" in tensors
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with LLM(path, "torch", **SMALL) as llm:
        ((ids, tokens),) = answers(llm, CHAT)
    assert tokens == expected(references["qwen2-vl"], ids)


def test_experts_of_the_published_files_are_read(directories, references, tmp_path: Path) -> None:
    """Whose matrices are [experts, in, out], where transformers writes [experts, out, in]."""
    from safetensors.numpy import load_file, save_file

    path = copy(directories["qwen3-vl-moe"], tmp_path / "model")
    tensors = {
        name: np.ascontiguousarray(tensor.swapaxes(1, 2)) if ".experts." in name else tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with LLM(path, "torch", **SMALL) as llm:
        ((ids, tokens),) = answers(llm, CHAT)
    assert tokens == expected(references["qwen3-vl-moe"], ids)


@pytest.mark.parametrize("sections", [[4, 4, 4], [4, 4], None])
def test_sections_that_do_not_fit_the_heads_are_refused(sections, directories) -> None:
    config = json.loads((directories["qwen2-vl"] / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = sections
    with pytest.raises(StartError, match="expected 3 ints, with the sum 8"):
        load_definition(config)


def test_a_text_model_of_the_same_class_has_plain_positions(directories) -> None:
    config = json.loads((directories["qwen2-vl"] / "config.json").read_text())
    del config["vision_config"]
    assert load_definition(config)[0].rope.axes == ()
    assert find_prompt_format(config) is None
