"""Language models on the mindspore runtime, against the reference implementation."""

import json
from collections.abc import Iterator
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
COUNT = 24  # greedy tokens
# The definition is the same for every model: those that have no operation of their own are long,
# as each compiles two graphs.
SIMILAR = (
    *(
        "baichuan2-13b",
        "chatglm3-32k",
        "gemma3",
        "mixtral",
        "pangu-embedded",
        "pangu-ultra",
        "phi3",
    ),
    *("llama3-tied", "llama-biased", "llama-yarn", "qwen2", "internlm", "internlm2", "internlm3"),
    *("internlm3-biased", "baichuan2-7b", "chatglm2-32k"),
    *("telechat2", "pangu-embedded", "pangu-ultra"),
)
MODELS = [
    pytest.param(name, marks=[pytest.mark.long] * (name in SIMILAR)) for name in checkpoints.ALL
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest, directory: Path) -> Iterator[tuple[Path, Runner]]:
    """The checkpoint of a model of two layers, and its runner."""
    name = request.param
    model = checkpoints.build(name, directory, **checkpoints.two_layers(name))
    runner = opened(model)
    yield model, runner
    runner.close()


def opened(path: Path) -> Runner:
    return open_runner(path, "mindspore", EngineConfig(block_size=8, kv_cache_memory=2**20))


def test_logits_are_those_of_the_reference(served: tuple[Path, Runner]) -> None:
    model, runner = served
    prompt = checkpoints.prompts(1)[0]
    row = Row(prompt, 0, list(range(-(-len(prompt) // runner.block_size))), len(prompt))
    logits = runner.run(Step((row,)))
    expected = checkpoints.logits(model, prompt)
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 1e-3 * np.abs(expected).max()


def test_greedy_tokens_are_those_of_the_reference(served: tuple[Path, Runner]) -> None:
    """Two texts in one batch, prompts in pieces beside a text that decodes."""
    model, runner = served
    prompts = checkpoints.prompts(2)
    answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=17)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == COUNT
        assert answer == checkpoints.likeliest(model, prompt, answer)


@pytest.fixture(scope="module")
def mistral(directory: Path) -> Path:
    return checkpoints.build("mistral", directory / "alone")


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "fp8"},
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


@pytest.mark.parametrize("names", ["rope", "ropes", "all"])
def test_composed_primitives_are_refused_on_a_cpu(mistral: Path, names: str) -> None:
    with pytest.raises(StartError, match=f"composed_primitives is '{names}', .* leave it out"):
        open_runner(mistral, "mindspore", EngineConfig(composed_primitives=names))


def test_weights_that_do_not_fit_the_config_are_refused_at_the_start(
    mistral: Path, tmp_path: Path
) -> None:
    config = json.loads((mistral / "config.json").read_text()) | {"num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((mistral / "model.safetensors").read_bytes())
    with pytest.raises(StartError, match="the weights do not fit"):
        opened(tmp_path)
