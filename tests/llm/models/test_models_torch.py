"""Every architecture on the torch runtime, against the reference implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.torch.opening import TorchRunner, open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.running import generate_staggered, texts

pytestmark = pytest.mark.torch
COUNT = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=checkpoints.ALL)
def model(request: pytest.FixtureRequest, directory: Path) -> Path:
    name = request.param
    return checkpoints.build(name, directory, **checkpoints.two_layers(name))


def opened(path: Path) -> TorchRunner:
    return open_runner(path, EngineConfig(device="cpu", block_size=8, kv_cache_memory=2**20))


def whole(runner: TorchRunner, prompt: tuple[int, ...]) -> np.ndarray:
    """The logits of every position of `prompt`, computed at once."""
    blocks = range(-(-len(prompt) // runner.block_size))
    return runner.run(Step((Row(prompt, 0, list(blocks), len(prompt)),)))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_logits_are_those_of_the_reference(model: Path) -> None:
    prompt = checkpoints.prompts(1)[0]
    logits = whole(opened(model), prompt)
    assert logits.dtype == np.float32
    assert relative_error(logits, checkpoints.logits(model, prompt)) < 1e-3


def test_greedy_tokens_are_those_of_the_reference(model: Path) -> None:
    """Four texts in one batch, prompts in pieces beside texts that decode."""
    runner = opened(model)
    prompts = checkpoints.prompts(4)
    answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=17)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == COUNT
        assert answer == checkpoints.likeliest(model, prompt, answer)


def test_answers_vary_enough_to_tell_models_apart(model: Path) -> None:
    """What makes equal tokens mean something: the reference does not repeat one token."""
    answer = checkpoints.greedy(model, checkpoints.prompts(2)[1], 8)
    assert len(set(answer)) > 3


def test_a_checkpoint_in_shards_computes_the_same(directory: Path) -> None:
    prompt = checkpoints.prompts(1)[0]
    single = checkpoints.build("qwen3", directory / "single")
    shards = checkpoints.build("qwen3", directory / "shards", shards=3)
    assert len(list(shards.glob("*.safetensors"))) > 1
    np.testing.assert_array_equal(whole(opened(shards), prompt), whole(opened(single), prompt))


@pytest.mark.parametrize("name", ["llama", "baichuan2-7b", "gpt2"])
def test_a_bfloat16_checkpoint_is_read(directory: Path, name: str) -> None:
    prompt = checkpoints.prompts(1)[0]
    path = checkpoints.build(name, directory / "bf16", dtype="bfloat16")
    error = relative_error(whole(opened(path), prompt), checkpoints.logits(path, prompt))
    # Baichuan's normalised matrix is rounded to the file's type.
    assert error < (1e-2 if name == "baichuan2-7b" else 1e-3)


def rewritten(path: Path, target: Path, change: "dict[str, object]", drop: set[str]) -> Path:
    """`path` under `target` with another config.json; a key with None is left out."""
    target.mkdir(parents=True)
    for file in path.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in drop} | change
    (target / "config.json").write_text(json.dumps(config))
    return target


OLD_CONFIGS: dict[str, tuple[dict[str, object], set[str]]] = {
    "llama3-tied": (
        {
            "rope_theta": 10000.0,
            "rope_scaling": {
                key: value for key, value in checkpoints.LLAMA3_ROPE.items() if key != "rope_theta"
            },
        },
        {"rope_parameters", "head_dim"},
    ),
    "gemma2": ({"rope_theta": 10000.0}, {"rope_parameters", "tie_word_embeddings"}),
    "gemma3": (
        {
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
        {"rope_parameters", "tie_word_embeddings"},
    ),
    "gemma3n": (
        {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None},
        {"rope_parameters", "tie_word_embeddings"},
    ),
    "qwen3-moe": ({"num_experts": 8, "rope_theta": 10000.0}, {"rope_parameters"}),
}


@pytest.mark.parametrize("name", OLD_CONFIGS)
def test_config_of_older_transformers_gives_same_spec(
    directory: Path, tmp_path: Path, name: str
) -> None:
    path = checkpoints.build(name, directory / "old")
    change, drop = OLD_CONFIGS[name]
    old = rewritten(path, tmp_path / "old", change, drop)
    prompt = checkpoints.prompts(1)[0]
    np.testing.assert_array_equal(whole(opened(old), prompt), whole(opened(path), prompt))


def test_telechat_may_have_a_norm_of_embeddings(directory: Path, tmp_path: Path) -> None:
    prompt = checkpoints.prompts(1)[0]
    path = checkpoints.build("telechat2", directory / "normed")
    normed = rewritten(path, tmp_path / "telechat2", {"embed_layernorm": True}, set())
    gain = np.random.default_rng(5).normal(1, 0.2, 64).astype(np.float32)
    tensors = load_file(normed / "model.safetensors")
    tensors["transformer.word_embeddings_layernorm.weight"] = gain
    save_file(tensors, normed / "model.safetensors")
    assert relative_error(whole(opened(normed), prompt), checkpoints.logits(normed, prompt)) < 1e-3


def test_dynamic_rope_base_follows_the_longest_sequence(directory: Path, tmp_path: Path) -> None:
    prompt = checkpoints.prompts(1)[0]
    path = checkpoints.build("internlm3", directory / "dynamic")
    short = rewritten(path, tmp_path / "internlm3", {"max_position_embeddings": 20}, set())
    config = EngineConfig(
        device="cpu", block_size=8, kv_cache_memory=2**20, max_model_len=len(prompt)
    )
    logits, plain = whole(open_runner(short, config), prompt), whole(opened(path), prompt)
    assert relative_error(logits, checkpoints.logits(short, prompt)) < 1e-3
    assert relative_error(logits, plain) > 1e-2
