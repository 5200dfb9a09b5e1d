"""On the mindspore runtime, one architecture for each operation that Llama does not have."""

from pathlib import Path

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
ROUNDING = 1e-5  # of the largest logit
COUNT = 6
NAMES = (
    "olmo",  # layer norms without weights
    "nemotron",  # 1 added to weights of layer norms, squared ReLU
    "cohere-normed",  # pairs of features turned, layer norms of heads
    "bloom",  # ALiBi, a norm of embeddings
    "phi",  # a bias of the output matrix
    "opt",  # learned positions, ReLU
    "qwen2-moe",  # an expert behind a sigmoid
    "glm4-moe",  # sigmoids, groups of experts, a correction
    "llama4",  # experts whose input is scaled, queries that grow, norms without weights
    "gpt-oss",  # sinks, clamped experts with biases
    "deepseek-v2",  # latent attention
    "gemma3n",  # several hidden states, sparse gates
    "gemma4",  # heads of two sizes, shared keys and values, inputs of each layer
    "gemma4-moe",  # experts with GELU beside a dense block
)
# Each compiles two graphs.
LONG = ("olmo", "nemotron", "phi", "opt", "qwen2-moe", "deepseek-v2", "gemma3n", "gemma4")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in NAMES]
)
def test_logits_and_greedy_tokens_are_the_references(root: Path, name: str) -> None:
    directory = checkpoints.build(name, root)
    config = EngineConfig(block_size=8, kv_cache_memory=2**21)
    runner = open_runner(directory, "mindspore", config)
    prompts = checkpoints.prompts(2, longest=40)
    answers = greedy(runner, prompts, COUNT, chunk=17, arrivals=[0, 2])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    whole = [*prompts[0], *answers[0]]
    error = relative_error(all_logits(runner, whole), checkpoints.logits(directory, whole))
    assert error < 1e-4
    runner.close()


def test_states_beside_keys_and_values_are_refused(root: Path) -> None:
    directory = checkpoints.build("lfm2", root)
    config = EngineConfig(block_size=8, kv_cache_memory=2**21)
    with pytest.raises(StartError, match="with a recurrent state.* the openvino or the torch"):
        open_runner(directory, "mindspore", config)
