"""Ranks of quantised models on OpenVINO: each has its part of the integers of the file."""

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints, gguf_files
from tests.llm.quantised_files import CASES, quantised
from tests.llm.rank_threads import ranks

STEP = Step((Row((5, 6, 7, 8, 9), 0, (1,), 5),))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A model whose ranks have whole groups of inputs."""
    return checkpoints.build("llama", tmp_path_factory.mktemp("model"), intermediate_size=128)


def logits_of_ranks(path, **options):
    with ranks(path, 2, "openvino", kv_cache_dtype="f32", **options) as runner:
        return runner.run(STEP)


def logits_of_a_process(path, **options):
    memory = {"kv_cache_dtype": "f32", "kv_cache_memory": 2**20}
    config = EngineConfig(dtype="f32", **memory, **options)
    return open_runner(path, "openvino", config).run(STEP)


@pytest.mark.parametrize(
    "form", ["gptq", "awq", "fp8-block", "w4a16-asymmetric", "nf4", "w8a8-asymmetric"]
)
def test_ranks_of_a_quantised_file_compute_as_a_process_does(llama, form, tmp_path):
    path, _ = quantised(llama, tmp_path, CASES[form])
    expected = logits_of_a_process(path)
    np.testing.assert_allclose(logits_of_ranks(path), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_ranks_of_a_gguf_file_compute_as_a_process_does(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "INNER", 128)
    path = gguf_files.write_model(tmp_path / "model.gguf", kind=kind)
    expected = logits_of_a_process(path)
    np.testing.assert_allclose(logits_of_ranks(path), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_ranks_round_a_matrix_as_a_process_does(llama, quantization):
    """Each rank rounds the inputs of its products for itself, hence the tolerance."""
    expected = logits_of_a_process(llama, quantization=quantization)
    logits = logits_of_ranks(llama, quantization=quantization)
    assert np.linalg.norm(logits - expected) < 0.08 * np.linalg.norm(expected)


def test_a_file_whose_groups_would_be_split_is_refused(tmp_path):
    model = checkpoints.build("llama", tmp_path, intermediate_size=96)
    path, _ = quantised(model, tmp_path / "files", CASES["awq"])
    with pytest.raises(StartError, match="groups of 32 inputs, which do not divide the 48 inputs"):
        logits_of_ranks(path)
