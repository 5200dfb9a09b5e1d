"""The native runtime on GGUF files: products with the blocks that the file stores."""

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("gguf")

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native.weights import NativeWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import gguf_files
from tests.llm.stepping import all_logits, relative_error

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]


def logits_of(path, runtime):
    config = EngineConfig(kv_cache_memory=2**20, kv_cache_dtype="f32", dtype="f32")
    return all_logits(open_runner(path, runtime, config), TOKENS)


def rounded(x):
    """Rows of `x` as the kernels of integers round them: int8 and a scale for each 16."""
    blocks = x.numpy().reshape(len(x), -1, 16)
    largest = np.abs(blocks).max(-1, keepdims=True)
    integers = np.rint(blocks * (np.float32(127) / np.where(largest, largest, 1)))
    return (integers * (largest / np.float32(127))).astype(np.float32).reshape(x.shape)


@pytest.fixture
def torch_rounds(monkeypatch):
    """The torch runtime rounds the inputs of its products."""
    torch = pytest.importorskip("torch")
    from mindspore_serving.llm.runtimes.torch.ops import TorchOps

    def linear(_, x, weight, bias=None):
        return torch.nn.functional.linear(torch.from_numpy(rounded(x)), weight, bias)

    monkeypatch.setattr(TorchOps, "linear", linear)
    monkeypatch.setattr(TorchOps, "logits", linear)


@pytest.mark.torch
def test_logits_of_floats_are_those_of_torch(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="F32")
    assert relative_error(logits_of(path, "native"), logits_of(path, "torch")) < 1e-5


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_logits_are_those_of_decoded_matrices_and_rounded_rows(kind, torch_rounds, tmp_path):
    """The limit leaves room for a few ties that sums in another order round the other way.

    Without rounding, logits of these random layers differ by 0.03 to 0.05.
    """
    path = gguf_files.write_model(tmp_path / "model.gguf", kind=kind)
    assert relative_error(logits_of(path, "native"), logits_of(path, "torch")) < 0.005


def test_passes_of_a_prompt_that_need_no_logits_end(tmp_path):
    """The last matrix has no rows in them."""
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    runner = open_runner(path, "native", EngineConfig(kv_cache_memory=2**20))
    prompt = [*TOKENS, *TOKENS]
    last = runner.run(Step((Row(prompt, 0, range(runner.num_blocks), 1),)))
    np.testing.assert_array_equal(last, all_logits(runner, prompt)[-1:])


def test_matrices_stay_in_the_mapped_file(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    checkpoint = Checkpoint.open(path)
    weights = NativeWeights(checkpoint)
    name = "model.layers.0.mlp.up_proj.weight"
    number, _ = weights.matrix(name, gguf_files.HIDDEN)
    address = checkpoint.stored(name).bits.ctypes.data
    assert weights.matrices[number].data.ctypes.data == address
