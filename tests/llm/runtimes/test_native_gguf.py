"""The native runtime on GGUF files: products with the blocks that the file stores."""

import pytest

pytest.importorskip("numba")
pytest.importorskip("gguf")

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native.weights import NativeWeights
from tests.llm import gguf_files
from tests.llm.stepping import all_logits, relative_error

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]


def logits_of(path, runtime):
    config = EngineConfig(kv_cache_memory=2**20, kv_cache_dtype="f32", dtype="f32")
    return all_logits(open_runner(path, runtime, config), TOKENS)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "limit"), [("F32", 1e-5), ("Q8_0", 0.08), ("Q4_0", 0.08)])
def test_logits_are_those_of_the_decoded_matrices(kind, limit, tmp_path):
    """Activations are rounded to 8 bits, except with floats; random layers enlarge the error."""
    path = gguf_files.write_model(tmp_path / "model.gguf", kind=kind)
    assert relative_error(logits_of(path, "native"), logits_of(path, "torch")) < limit


def test_matrices_stay_in_the_mapped_file(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    checkpoint = Checkpoint.open(path)
    weights = NativeWeights(checkpoint)
    name = "model.layers.0.mlp.up_proj.weight"
    number, _ = weights.matrix(name, gguf_files.HIDDEN)
    address = checkpoint.stored(name).bits.ctypes.data
    assert weights.matrices[number].data.ctypes.data == address
