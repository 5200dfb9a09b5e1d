"""Models that hear compute what transformers computes, however their prompts are cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import InvalidField, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.quantize import quantize
from tests.llm import listening, seeing
from tests.llm.images.test_models import LONG, RUNTIMES, block, config, small_cache
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch

COUNT = 12
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
# Longer than 1 s: with Qwen3-Omni the library's vectors of shorter sounds depend on the other
# sounds of the call, and with Gemma 3n those of all but the longest.
FIRST, SECOND = listening.sound(1, 1.013), listening.sound(2, 1.3371)
# Kinds of which the library computes the end of a sound otherwise beside a longer one.
ALONE = ("gemma3n-sounds", "qwen3-asr")
CHATS = {
    "one sound": ("What is ", FIRST, " there?"),
    "two sounds": (SECOND, "Is it as ", FIRST, "?"),
    "sounds of a length": (FIRST, "Is it as ", listening.sound(4, 1.013), "?"),
    "a short sound": ("Is there ", listening.sound(3, 0.07), "?"),
    "no sound": ("What is there?",),
}
SOUNDS_ALONE = {"gemma3n-sounds": {"max_images": 0}}  # as its vision tower needs timm
MIXED = ("Is ", FIRST, " of ", seeing.image(1), " or ", SECOND, " of ", seeing.image(2, 90, 30))


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    parent = tmp_path_factory.mktemp("listening")
    return {kind: listening.build(parent, kind) for kind in listening.KINDS}


@pytest.fixture(scope="module")
def references(directories):
    return {kind: listening.Reference(path, kind) for kind, path in directories.items()}


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        pytest.param(kind, runtime, marks=LONG * (runtime == "native" and kind != "qwen2-audio"))
        for kind in listening.KINDS
        for runtime in RUNTIMES
    ],
)
def test_logits_and_tokens_are_those_of_transformers(kind, runtime, directories, references):
    options = config(runtime, **SOUNDS_ALONE.get(kind, {}))
    opened = open_model(directories[kind], runtime, make_config(options))
    several = "sounds of a length" if kind in ALONE else "two sounds"
    chats = [CHATS[several], CHATS["one sound"], CHATS["a short sound"]]
    try:
        for parts in (*chats, *([MIXED] if kind in listening.SEEING else [])):
            listening.check(opened, references[kind], parts, GREEDY)
    finally:
        opened.engine.close()


def answers(llm, *chats, count=COUNT):
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    outputs = llm.chat([listening.chat(*parts) for parts in chats], params, use_tqdm=False)
    return [(each.prompt_token_ids, list(each.outputs[0].token_ids)) for each in outputs]


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [("qwen2.5-omni", "openvino"), ("qwen2.5-omni", "torch"), ("gemma3n-sounds", "torch")],
)
def test_prompts_with_sounds_and_images_are_cut_batched_and_preempted(
    kind, runtime, directories, references
):
    # A step has room for a part of a sound, and the cache not for all sequences.
    room = {"max_num_batched_tokens": 24, "max_num_seqs": 4, **small_cache(kind, runtime)}
    room |= SOUNDS_ALONE.get(kind, {})
    several, mixed = CHATS["two sounds"], [MIXED]
    if kind not in listening.SEEING:
        several, mixed = CHATS["sounds of a length"], []
    chats = [*({**CHATS, "two sounds": several}).values(), *mixed]
    with LLM(directories[kind], runtime, **{**config(runtime), **room}) as llm:
        outputs = answers(llm, *chats, count=48)
        assert llm.stats().num_preemptions > 0
    for parts, (ids, tokens) in zip(chats, outputs, strict=True):
        assert tokens == references[kind].greedy(ids, listening.media(parts), 48)


def gemma3n_processor(directory):
    end_of_image, picture, end, sound = listening.OTHER_TOKENS
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        extra_special_tokens={
            "image_token": picture, "boi_token": "<start_of_image>", "eoi_token": end_of_image,
            "audio_token": sound, "boa_token": "<img>", "eoa_token": end,
        },
    )  # fmt: skip
    extractor, images = listening.extractor("gemma3n"), listening.images("gemma3n")
    return transformers.Gemma3nProcessor(
        extractor, images, tokenizer, audio_seq_length=12, image_seq_length=16
    )


def test_images_of_gemma3n_are_computed_in_a_process_with_timm():
    """Runs `timm_cases`: this process keeps what it knew of libraries when it began."""
    if not (Path(sys.prefix) / "timm").is_dir():
        pytest.skip(f"{sys.prefix}/timm is missing (make test installs timm there)")
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    env["OMP_NUM_THREADS"] = "1"  # threads of PyTorch that spin took most of the time
    options = ("-q", "-p", "no:cacheprovider", "-n", "0", "-p", "tests.llm.with_timm")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/llm/timm_cases.py"],
        cwd=Path(__file__).parents[3], env=env, capture_output=True, text=True,
        timeout=2 * PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ModuleNotFoundError('No module', name='timm')", "timm, which is not installed; install"),
        ("RuntimeError('operator torchvision::nms does not exist')", "nms does not exist; install"),
    ],
    ids=["missing", "broken"],
)
def test_gemma3n_says_how_to_take_images_or_do_without(
    error, reason, directories, tmp_path, monkeypatch
):
    (tmp_path / "timm.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StartError, match=f"{reason}.*; max_images=0 serves it without images"):
        open_model(directories["gemma3n-sounds"], "torch", make_config(config("torch")))
    told = pytest.raises(InvalidField, match="is an image, but the model reads no images")
    with LLM(directories["gemma3n-sounds"], "torch", **config("torch", max_images=0)) as llm, told:
        answers(llm, (FIRST, seeing.image(1)))


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_sound_tower_loaded_alone_has_all_its_tensors(change, directories, tmp_path):
    for file in directories["gemma3n-sounds"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.embed_audio.embedding.weight"
    if change == "more":
        name = "model.audio_tower.surprise.weight"
        tensors[name] = np.ones((2, 2), "f4")
    else:
        del tensors[name]
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartError, match=name.removeprefix("model.").replace(".", r"\.")):
        Tower.open(tmp_path, make_config({"device": "cpu", "max_images": 0}))


def test_blocks_are_shared_by_prompts_with_the_same_sounds_alone(directories, references):
    first, second = (("Hear ", listening.sound(seed, 1), " and say") for seed in (1, 2))
    options = {**config("torch"), "block_size": block("torch")}
    with LLM(directories["qwen2-audio"], "torch", **options) as llm:
        before = answers(llm, first)
        other = answers(llm, second)  # the same tokens
        assert before[0][0] == other[0][0]
        assert llm.stats().num_cache_hits < before[0][0].index(listening.SOUND)
        assert answers(llm, first, second) == [*before, *other]
        assert llm.stats().num_cache_hits > 2 * before[0][0].count(listening.SOUND)
    for parts, (ids, tokens) in zip((first, second), (*before, *other), strict=True):
        assert tokens == references["qwen2-audio"].greedy(ids, listening.media(parts), COUNT)


def test_a_model_is_served_for_texts_or_images_alone(directories):
    options = {**config("torch"), "max_audios": 0}
    with LLM(directories["qwen2-audio"], "torch", **options) as llm:
        assert len(answers(llm, CHATS["no sound"])[0][1]) == COUNT
    opened = open_model(directories["qwen2.5-omni"], "torch", make_config(options))
    card = opened.card()
    opened.engine.close()
    assert (card.takes_images, card.takes_sounds) == (True, False)


@pytest.mark.parametrize("runtime", ["mindspore", "mindir", "toy"])
def test_a_runtime_that_takes_no_sounds_is_refused_by_name(runtime, directories):
    text = f"'{runtime}' takes no sounds, expected one of openvino, torch, native; max_audios=0"
    with pytest.raises(StartError, match=f"{text} serves it for texts only"):
        open_model(directories["qwen2-audio"], runtime, make_config({}))


def test_a_quantised_checkpoint_keeps_its_towers(directories, tmp_path):
    quantize(directories["qwen2.5-omni"], tmp_path / "small", "int8")
    with LLM(tmp_path / "small", "torch", **config("torch")) as llm:
        ((ids, tokens),) = answers(llm, MIXED)
    assert {seeing.IMAGE, listening.SOUND} <= set(ids)
    assert len(tokens) == COUNT


def test_files_of_the_whole_model_say_that_the_speaking_part_is_left_out(
    directories, tmp_path, caplog
):
    """As the published ones have it: with settings and tensors of the parts that speak."""
    for file in directories["qwen2.5-omni"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["talker.codec_head.weight"] = tensors["token2wav.a.weight"] = np.ones((2, 2), "f4")
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    fields |= {"architectures": ["Qwen2_5OmniModel"], "enable_talker": True}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with LLM(tmp_path, "torch", **config("torch")) as llm:
        assert len(answers(llm, CHATS["one sound"])[0][1]) == COUNT
    assert "2 of the part for speech: answers are texts" in caplog.text


def test_files_of_qwen3_asr_are_read_as_published(directories, references, tmp_path):
    """With settings and tensors of a thinker, as vLLM reads them, too."""
    names = {
        "model.multi_modal_projector.linear_": "thinker.audio_tower.proj",
        "model.audio_tower.": "thinker.audio_tower.", "model.language_model.": "thinker.model.",
    }  # fmt: skip
    source = directories["qwen3-asr"]
    for file in source.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tensors = load_file(source / "model.safetensors")
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    fields = json.loads((source / "config.json").read_text())
    sounds = {**fields["audio_config"], "model_type": "qwen3_asr_audio_encoder"}
    text = {**fields["text_config"], "tie_word_embeddings": True}
    thinker = {"audio_config": sounds, "text_config": text, "audio_token_id": listening.SOUND}
    whole = {"architectures": fields["architectures"], "model_type": "qwen3_asr"}
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    for name in ("model.safetensors", "config.json", "preprocessor_config.json"):
        (tmp_path / name).unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**whole, "thinker_config": thinker}))
    extractor.save_pretrained(tmp_path)
    opened = open_model(tmp_path, "torch", make_config(config("torch")))
    try:
        assert opened.transcription_format is not None
        listening.check(opened, references["qwen3-asr"], CHATS["one sound"], GREEDY)
    finally:
        opened.engine.close()
