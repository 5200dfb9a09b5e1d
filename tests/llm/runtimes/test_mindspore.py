"""Language models on the mindspore runtime, against the reference implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.running import generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
LONG = ("llama",)  # 24 tokens; of the others, which are computed op by op as well, 6

# Their logits are compared all the same: a cache is read and written as others' are.
SIMILAR = (
    *("llama3-tied", "llama-biased", "llama-yarn", "qwen2", "internlm", "internlm2", "internlm3"),
    *("internlm3-biased", "baichuan2-7b", "chatglm2-32k"),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=checkpoints.ALL)
def model(request: pytest.FixtureRequest, directory: Path) -> Path:
    name = request.param
    if not (directory / name).exists():
        checkpoints.build(name, directory, **checkpoints.two_layers(name))
    return directory / name


def opened(path: Path) -> Runner:
    return open_runner(path, "mindspore", EngineConfig(block_size=8, kv_cache_memory=2**20))


def test_logits_are_those_of_the_reference(model: Path) -> None:
    runner = opened(model)
    prompt = checkpoints.prompts(1)[0]
    row = Row(prompt, 0, list(range(-(-len(prompt) // runner.block_size))), len(prompt))
    logits = runner.run(Step((row,)))
    expected = checkpoints.logits(model, prompt)
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[pytest.mark.long] * (name in SIMILAR)) for name in checkpoints.ALL],
    indirect=True,
)
def test_greedy_tokens_are_those_of_the_reference(model: Path) -> None:
    """Two texts in one batch, prompts in pieces beside a text that decodes."""
    runner = opened(model)
    prompts = checkpoints.prompts(2)
    count = 24 if model.name in LONG else 6
    answers = generate_staggered(runner, texts(runner, prompts, count), count, chunk=17)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == count
        assert answer == checkpoints.likeliest(model, prompt, answer)


@pytest.fixture(scope="module")
def mistral(directory: Path) -> Path:
    return checkpoints.build("mistral", directory / "alone")


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8"},
        {"dtype": "bf16"},
        {"kv_cache_dtype": "u8"},
        {"device": "cuda"},
        {"num_threads": 2},
    ],
)
def test_unsupported_option_is_named(mistral: Path, options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(StartError, match=f"{name} is .* mindspore runtime accepts"):
        open_runner(mistral, "mindspore", EngineConfig(**options))


def test_weights_that_do_not_fit_the_config_are_refused_at_the_start(
    mistral: Path, tmp_path: Path
) -> None:
    config = json.loads((mistral / "config.json").read_text()) | {"num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((mistral / "model.safetensors").read_bytes())
    with pytest.raises(StartError, match="the weights do not fit"):
        opened(tmp_path)
