"""Latent attention on OpenVINO and PyTorch: caches of latent vectors on a CPU, and where not."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.inspection import summarize_checkpoint
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = pytest.mark.torch
CONFIG = {"kv_cache_memory": 2**19, "max_num_batched_tokens": 32, "max_num_seqs": 4}
RUNTIMES = {
    "torch": {"device": "cpu", "block_size": 8},
    "openvino": {"dtype": "f32", "kv_cache_dtype": "f32"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize(
    ("name", "runtime"),
    [("deepseek-v2", "torch"), ("deepseek-v3", "openvino"), ("minicpm3", "torch"),
     ("minicpm3", "openvino")],
)  # fmt: skip
def test_logits_from_cached_latent_vectors_are_those_of_transformers(
    root: Path, name: str, runtime: str
) -> None:
    directory, prompts = checkpoints.build(name, root), checkpoints.prompts(3)
    runner = open_runner(directory, runtime, EngineConfig(**CONFIG, **RUNTIMES[runtime]))
    expected = checkpoints.logits(directory, prompts[0])
    assert relative_error(all_logits(runner, prompts[0]), expected) < 1e-4
    answers = greedy(runner, prompts, 12)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < 1e-5
    content = bytes(runner.read_block(1))
    assert len(content) == runner.block_bytes == runner.cache_memory.block_bytes
    runner.write_block(2, memoryview(bytearray(content)))
    np.testing.assert_array_equal(runner.read_block(2), runner.read_block(1))
    runner.close()


def test_a_block_of_latent_vectors_is_smaller_and_show_says_so(root: Path) -> None:
    directory = checkpoints.build("minicpm3", root / "sizes")
    plain, adapted, repeatable = (
        open_runner(directory, "torch", EngineConfig(**CONFIG, **RUNTIMES["torch"], **options))
        for options in ({}, {"max_loras": 1}, {"deterministic": True})
    )
    layers, latent, heads = 2, 32 + 8, 2 * 4 * 24
    given = EngineConfig(**CONFIG, **RUNTIMES["openvino"])
    twice = open_runner(directory, "openvino", given)
    assert twice.block_bytes == layers * (32 + latent) * 32 * 4
    assert plain.block_bytes == layers * latent * 8 * 4
    assert adapted.block_bytes == repeatable.block_bytes == layers * heads * 8 * 4
    sizes = [
        summarize_checkpoint(directory, "torch", has_accelerator=has).cache_bytes_per_token
        for has in (False, True)
    ]
    assert sizes == [layers * latent * 4, layers * heads * 2]
