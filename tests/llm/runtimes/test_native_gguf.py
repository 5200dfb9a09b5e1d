"""The native runtime on GGUF files: products with the blocks that the file stores."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("gguf")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.quantize import quantize
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native.codes import MAX_ROWS
from mindspore_serving.llm.runtimes.native.weights import NativeWeights, integers
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


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_integers_of_quantize_are_multiplied_as_stored(mode, torch_rounds, tmp_path):
    pytest.importorskip("transformers")
    from tests.llm import checkpoints

    floats = checkpoints.build("llama", tmp_path, num_hidden_layers=1)
    quantize(floats, tmp_path / mode, mode)
    weights = NativeWeights(Checkpoint.open(tmp_path / mode))
    weights.matrix("model.layers.0.self_attn.q_proj.weight", 64)
    assert weights.matrices[0].format.name == {"int8": "INT8", "int4": "INT4_64"}[mode]
    logits, expected = (logits_of(tmp_path / mode, runtime) for runtime in ("native", "torch"))
    assert relative_error(logits, expected) < 0.005


@pytest.mark.parametrize(
    ("bits", "group", "zeros", "name"),
    [
        (4, 32, True, "INT4_32_ZEROS"),
        (8, 64, True, None),
        (8, 32, False, None),
        (4, 16, False, None),
    ],
)
def test_only_integers_of_formats_with_kernels_stay_integers(bits, group, zeros, name):
    """Of 8 bits with zeros, or with several scales in a row, and of small groups."""
    values = np.zeros((8, 64 * bits // 8), np.uint8)
    scales = np.zeros((8, 64 // group), np.float16)
    points = scales.astype(np.uint8) if zeros else None
    matrix = integers(Packed(values, scales, bits, (8, 64), group, zeros=points), (8, 64))
    assert (matrix and matrix.format.name) == name


def test_passes_of_a_prompt_that_need_no_logits_end(tmp_path):
    """The last matrix has no rows in them."""
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    runner = open_runner(path, "native", EngineConfig(kv_cache_memory=2**20))
    prompt = [TOKENS[i % len(TOKENS)] for i in range(MAX_ROWS + 3)]
    last = np.array(runner.run(Step((Row(prompt, 0, range(runner.num_blocks), 1),))))
    np.testing.assert_array_equal(last, all_logits(runner, prompt)[-1:])


def test_matrices_stay_in_the_mapped_file(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    checkpoint = Checkpoint.open(path)
    weights = NativeWeights(checkpoint)
    name = "model.layers.0.mlp.up_proj.weight"
    number, _ = weights.matrix(name, gguf_files.HIDDEN)
    address = checkpoint.stored(name).bits.ctypes.data
    assert weights.matrices[number].data.ctypes.data == address


def written(path, **changes):
    """A model of Q8_0, with other keys than its tensors need."""
    return gguf_files.write_model(path / "model.gguf", kind="Q8_0", **changes)


def with_nan_scale(path):
    """The first block's scale of a layer's matrix is not a number."""
    file = written(path)
    rows = Checkpoint.open(file).stored("model.layers.1.mlp.down_proj.weight").bits.tobytes()
    content = file.read_bytes()
    at = content.index(rows)
    file.write_bytes(content[:at] + b"\xff\x7e" + content[at + 2 :])
    return file


def cut_off(path):
    file = written(path)
    file.write_bytes(file.read_bytes()[:-500])
    return file


MALFORMED = {
    "truncated": (cut_off, "is truncated: .* bytes are missing; download or copy it again"),
    "NaN": (with_nan_scale, r"weights or scales that are not numbers \(NaN\): it is damaged"),
    "heads": (
        lambda path: written(path, extra={"llama.attention.head_count": 8}),
        "heads of 8 features are rotated in 8 pairs",
    ),
    "a short norm": (
        lambda path: written(path, family="qwen3", extra={"qwen3.attention.key_length": 32}),
        "expected",
    ),
}


@pytest.mark.parametrize("runtime", ["native", "combined"])
@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_file_is_refused_naming_its_fault(fault, runtime, tmp_path):
    write, message = MALFORMED[fault]
    with pytest.raises(StartError, match=message):
        open_runner(write(tmp_path), runtime, EngineConfig(kv_cache_memory=2**20))
