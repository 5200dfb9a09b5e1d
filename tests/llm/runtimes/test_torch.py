"""The torch runner: chunks, mixed batches, forks, draft tokens, options.

Tests of both runners are in `test_runners`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.torch.runner import TorchRunner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.running import Text, advance, generate, texts

pytestmark = pytest.mark.torch
BLOCK = 8
COUNT = 16


@pytest.fixture(scope="module", params=["llama", "gemma2", "baichuan2-13b"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain attention; windows and softcap; ALiBi."""
    name = request.param
    folder = tmp_path_factory.mktemp("checkpoints")
    return checkpoints.build(name, folder, **checkpoints.two_layers(name))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("llama"))


def opened(path: Path, **options: object) -> TorchRunner:
    config = {"device": "cpu", "block_size": BLOCK, "kv_cache_memory": 2**20} | options
    runner = open_runner(path, "torch", EngineConfig(**config))
    assert isinstance(runner, TorchRunner)
    return runner


@pytest.mark.parametrize("chunk", [1, 5, 8, 17])
def test_chunked_prompt_matches_the_unchunked_prompt(model: Path, chunk: int) -> None:
    runner = opened(model)
    prompt = checkpoints.prompts(1)[0]
    (answer,) = generate(runner, texts(runner, [prompt], COUNT), COUNT, chunk=chunk)
    assert answer == checkpoints.likeliest(model, prompt, answer)


def test_a_batch_is_answered_as_each_text_alone(model: Path) -> None:
    """Lengths from 1 to several blocks, so that tables are padded."""
    runner = opened(model)
    prompts = [(5,), *checkpoints.prompts(5)]
    together = generate(runner, texts(runner, prompts, COUNT), COUNT)
    for prompt, answer in zip(prompts, together, strict=True):
        assert answer == checkpoints.likeliest(model, prompt, answer)


def test_a_fork_goes_on_from_a_copied_block(model: Path) -> None:
    """Three answers to one prompt: its whole blocks are shared, the partial one is copied; each
    goes on with another token and is what the reference says about that text."""
    runner = opened(model)
    prompt = checkpoints.prompts(1)[0][:21]  # two whole blocks and five tokens
    (first,) = texts(runner, [prompt], COUNT)
    free = sorted(set(range(runner.num_blocks)) - set(first.blocks))
    first.tokens.append(10)
    runner.run(Step((Row(prompt, 0, first.blocks, 1),)))
    first.num_computed = len(prompt)
    forks = [first]
    copies = []
    for token in (20, 30):
        own = [free.pop() for _ in first.blocks[2:]]
        copies.append((first.blocks[2], own[0]))
        fork = Text(list(prompt), first.blocks[:2] + own, num_computed=len(prompt))
        fork.tokens.append(token)
        forks.append(fork)
    logits = runner.run(Step(tuple(fork.row(1) for fork in forks), tuple(copies)))
    for fork, row in zip(forks, logits, strict=True):
        fork.num_computed += 1
        fork.tokens.append(int(row.argmax()))
    generate(runner, forks, COUNT)
    for fork, token in zip(forks, (10, 20, 30), strict=True):
        told, answer = (*prompt, token), fork.answer[1:]
        assert answer == checkpoints.likeliest(model, told, answer)


def test_draft_tokens_are_verified_in_a_single_step(model: Path) -> None:
    """Speculation: five tokens of each of two texts at once, all of their logits wanted; a wrong
    guess is overwritten afterwards and leaves no trace."""
    runner = opened(model)
    prompts = checkpoints.prompts(3)[1:]
    batch = texts(runner, prompts, COUNT)
    advance(runner, batch)
    guesses = [[text.tokens[-1], 9, 8, 7, 6] for text in batch]
    rows = [
        Row(guess, text.num_computed, text.blocks, 5)
        for text, guess in zip(batch, guesses, strict=True)
    ]
    logits = runner.run(Step(tuple(rows)))
    for index, (prompt, guess) in enumerate(zip(prompts, guesses, strict=True)):
        expected = checkpoints.logits(model, (*prompt, *guess))[-5:]
        np.testing.assert_allclose(logits[5 * index : 5 * index + 5], expected, atol=1e-3)
    generate(runner, batch, COUNT)
    for text, prompt in zip(batch, prompts, strict=True):
        assert text.answer == checkpoints.likeliest(model, prompt, text.answer)


def test_freed_blocks_do_not_affect_the_next_sequence(llama: Path) -> None:
    runner = opened(llama, kv_cache_memory=64 * 2**10)
    for prompt in checkpoints.prompts(6):
        text = Text(list(prompt), list(range(runner.num_blocks)))
        (answer,) = generate(runner, [text], 4)
        assert answer == checkpoints.likeliest(llama, prompt, answer)


def test_the_order_of_rows_is_the_order_of_logits(llama: Path) -> None:
    """Rows of unlike lengths are computed in groups; their logits come back in order."""
    runner = opened(llama)
    prompts = [(3,), (4, 5, 6), (7,), (8, 9, 10)]
    batch = texts(runner, prompts, 1)
    logits = runner.run(Step(tuple(text.row(10) for text in batch)))
    for prompt, row in zip(prompts, logits, strict=True):
        np.testing.assert_allclose(row, checkpoints.logits(llama, prompt)[-1], atol=1e-4)


def test_a_step_without_rows_does_its_copies(llama: Path) -> None:
    runner = opened(llama)
    (text,) = texts(runner, [(3, 4, 5)], COUNT)
    advance(runner, [text])
    spare = next(b for b in range(runner.num_blocks) if b not in text.blocks)
    logits = runner.run(Step((), ((text.blocks[0], spare),)))
    assert logits.shape == (0, checkpoints.VOCAB)
    text.blocks[0] = spare
    (answer,) = generate(runner, [text], COUNT)
    assert answer == checkpoints.likeliest(llama, (3, 4, 5), answer)


@pytest.mark.parametrize("options", [{"dtype": "bf16"}, {"kv_cache_dtype": "bf16"}])
def test_bfloat16_logits_are_near_float32(model: Path, options: dict[str, str]) -> None:
    """Of 60 positions the likeliest token is nearly always the reference's."""
    runner = opened(model, **options)
    prompt = checkpoints.prompts(1)[0]
    blocks = list(range(-(-len(prompt) // BLOCK)))
    logits = runner.run(Step((Row(prompt, 0, blocks, len(prompt)),)))
    expected = checkpoints.logits(model, prompt)
    assert logits.dtype == np.float32
    assert np.sqrt(((logits - expected) ** 2).mean() / (expected**2).mean()) < 0.05
    assert (logits.argmax(-1) == expected.argmax(-1)).mean() > 0.85


def test_a_cache_of_half_the_width_has_twice_the_blocks(llama: Path) -> None:
    wide, to_f16 = opened(llama), opened(llama, kv_cache_dtype="bf16")
    assert to_f16.num_blocks // 2 == wide.num_blocks


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"quantization": "int8"}, "quantization is 'int8'"),
        ({"dtype": "int3"}, "dtype is 'int3', the torch runtime accepts auto, f32, f16"),
        ({"kv_cache_dtype": "u8"}, "kv_cache_dtype is 'u8'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda:99"}, "device is 'cuda:99', but"),
        ({"max_model_len": 10**6}, "max_model_len is 1000000"),
    ],
)
def test_unsupported_option_is_named(llama: Path, options: dict[str, object], text: str) -> None:
    with pytest.raises(StartError, match=text):
        opened(llama, **options)


def changed(path: Path, target: Path, **config: object) -> Path:
    """`path` with another config.json."""
    target.mkdir()
    (target / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    old = json.loads((path / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(old | config))
    return target


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"num_hidden_layers": 4}, "no tensor 'model.layers.3"),
        ({"num_key_value_heads": 1}, "the weights do not fit config.json"),
        ({"vocab_size": 161}, "has 160 rows, but config.json has vocab_size 161"),
        (
            {"architectures": ["NoSuchModel"]},
            "NoSuchModel.*is not supported; `mindspore-serving docs architectures`",
        ),
    ],
)
def test_a_config_that_its_weights_do_not_fit_is_refused_at_the_start(
    llama: Path, tmp_path: Path, config: dict[str, object], text: str
) -> None:
    with pytest.raises(StartError, match=text):
        opened(changed(llama, tmp_path / "changed", **config))


@pytest.mark.gpu
def test_a_cuda_device_computes_the_same_in_float32(model: Path) -> None:
    runner = opened(model, device="cuda", dtype="f32")
    prompts = checkpoints.prompts(4)
    answers = generate(runner, texts(runner, prompts, COUNT), COUNT, chunk=17)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(model, prompt, answer)
