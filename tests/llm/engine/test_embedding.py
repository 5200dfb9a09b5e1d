"""Embeddings, against the last hidden state that transformers computes."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.running import require

pytestmark = pytest.mark.torch
RUNTIMES = (
    "torch",
    "openvino",
    "native",
    pytest.param("mindspore", marks=[pytest.mark.long, pytest.mark.mindspore]),
)
OPTIONS = {"dtype": "f32", "kv_cache_dtype": "f32", "block_size": 32, "kv_cache_memory": 2**22}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def built(name: str, directory: Path) -> Path:
    """The checkpoint; built once."""
    path = directory / name
    return path if path.exists() else checkpoints.build(name, directory)


@cache
def opened(path: Path) -> Any:
    return transformers.AutoModel.from_pretrained(path).eval()


def reference(path: Path, prompt: tuple[int, ...]) -> np.ndarray:
    """The normalised last hidden state of the last token."""
    with torch.inference_mode():
        state = opened(path)(torch.tensor([prompt])).last_hidden_state[0, -1]
    return functional.normalize(state, dim=-1).numpy()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mixtral"])
def test_embeddings_are_the_last_hidden_state_of_the_reference(
    directory: Path, name: str, runtime: str
) -> None:
    require(runtime)
    path = built(name, directory)
    prompts = [(5,), *checkpoints.prompts(2)]
    with LLM(path, runtime, **OPTIONS) as llm:
        vectors = llm.embed([list(prompt) for prompt in prompts])
    assert vectors.dtype == np.float32
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, reference(path, prompt), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "head"), [("internlm2", "output.weight"), ("baichuan2-7b", "lm_head.weight")]
)
def test_the_hidden_state_times_the_output_matrix_are_the_logits(
    directory: Path, name: str, head: str
) -> None:
    """Of architectures that transformers does not have."""
    path = checkpoints.build(name, directory)
    matrix = load_file(path / "model.safetensors")[head]
    if name.startswith("baichuan"):
        matrix = functional.normalize(matrix, dim=-1)
    runner = open_runner(path, "torch", EngineConfig(block_size=32, kv_cache_memory=2**22))
    prompt = checkpoints.prompts(1)[0]
    hidden = runner.embed(Step((Row(prompt, 0, [0, 1], len(prompt)),)))
    expected = checkpoints.logits(path, prompt)
    np.testing.assert_allclose(hidden @ matrix.numpy().T, expected, atol=1e-3)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_prompts_longer_than_a_step_are_embedded_in_pieces(directory: Path, runtime: str) -> None:
    require(runtime)
    path = built("llama", directory)
    prompts = checkpoints.prompts(4)
    options = {**OPTIONS, "max_num_batched_tokens": 16, "max_num_seqs": 2}
    assert max(map(len, prompts)) > 32
    with LLM(path, runtime, **options) as llm:
        vectors = llm.embed([list(prompt) for prompt in prompts])
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, reference(path, prompt), atol=1e-4)


def test_embedding_frees_its_blocks_and_spoils_no_cached_block(directory: Path) -> None:
    """A cache of four blocks, of which three hold a prompt that is asked for again."""
    path = built("llama", directory)
    prompt = list(checkpoints.prompts(1)[0] * 2)[:100]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    options = {**OPTIONS, "kv_cache_memory": 4 * 32 * 3 * 2 * 2 * 16 * 4}
    with LLM(path, "torch", **options) as llm:
        before = llm.generate([prompt], params)[0].outputs[0].token_ids
        llm.embed([[7] * 20, [9] * 120, [8] * 20])
        stats = llm.stats()
        assert stats.num_free_blocks == stats.num_blocks == 4
        after = llm.generate([prompt], params)[0].outputs[0].token_ids
    assert after == before == checkpoints.greedy(path, tuple(prompt), 4)


def test_prompts_that_cannot_be_embedded_are_named(directory: Path) -> None:
    path = built("llama", directory)
    with LLM(path, "torch", **OPTIONS) as llm:
        assert llm.embed([]).shape == (0, 64)
        with pytest.raises(InvalidInputs, match=r"prompts\[1\]: the prompt has token id 999"):
            llm.embed([[1], [999]])
        with pytest.raises(InvalidInputs, match="the prompt is empty"):
            llm.embed([[]])


def test_a_runtime_without_embeddings_says_so(directory: Path) -> None:
    path = built("llama", directory)
    with LLM(path, "toy", block_size=4) as llm, pytest.raises(InvalidInputs, match="no embeddings"):
        llm.embed([[1, 2]])
