"""Tables of operators, against numpy; and a model computed with Ascend's table."""

import math
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore, use_device
from mindspore_serving.llm.runtimes.mindspore.operators import OPERATORS, Operators
from tests.llm import checkpoints
from tests.llm.running import generate, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
NO_CPU_KERNEL = {"gelu_tanh", "take"}  # of mint
X = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(4, 5)).astype(np.float32)
ROWS = np.array([2, 0, 2], np.int32)
EXPONENTIALS = np.exp(X)
CALLS = {
    "matmul": ((X, Y), X @ Y),
    "softmax": ((X,), EXPONENTIALS / EXPONENTIALS.sum(-1, keepdims=True)),
    "mean": ((X,), X.mean(-1, keepdims=True)),
    "rsqrt": ((X * X,), 1 / np.abs(X)),
    "tanh": ((X,), np.tanh(X)),
    "erf": ((X,), np.vectorize(math.erf)(X)),
    "silu": ((X,), X / (1 + np.exp(-X))),
    "gelu_tanh": ((X,), X * (1 + np.tanh((2 / np.pi) ** 0.5 * (X + 0.044715 * X**3))) / 2),
    "take": ((X, ROWS), X[ROWS]),
}


@pytest.mark.parametrize("target", [CPU, ASCEND])
@pytest.mark.parametrize("name", [field.name for field in fields(Operators)])
def test_operators_match_numpy(target: str, name: str) -> None:
    use_device(CPU)
    operator = getattr(OPERATORS[target], name)
    if name == "cat":
        x = mindspore.Tensor(X)
        np.testing.assert_array_equal(operator([x, x], -1).asnumpy(), np.concatenate([X, X], -1))
        return
    inputs, expected = CALLS[name]
    tensors = [mindspore.Tensor(array) for array in inputs]
    if target == ASCEND and name in NO_CPU_KERNEL:
        with pytest.raises(RuntimeError, match="kernel .* unregistered"):  # the call is well formed
            operator(*tensors).asnumpy()  # the error may come with the result
        with suppress(RuntimeError):  # and once more, with whatever is computed next
            mindspore.runtime.synchronize()
        return
    np.testing.assert_allclose(operator(*tensors).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_ascend_operators_on_cpu_give_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that a CPU has no kernel for."""
    source = checkpoints.build("qwen3", tmp_path)
    borrowed = {name: getattr(OPERATORS[CPU], name) for name in NO_CPU_KERNEL}
    monkeypatch.setitem(OPERATORS, CPU, replace(OPERATORS[ASCEND], **borrowed))
    runner = open_runner(source, "mindspore", EngineConfig(block_size=8, kv_cache_memory=2**20))
    prompts = checkpoints.prompts(2)
    for prompt, answer in zip(
        prompts, generate(runner, texts(runner, prompts, 16), 16), strict=True
    ):
        assert answer == checkpoints.likeliest(source, prompt, answer)


@pytest.mark.parametrize("graph_mode", [False, True])
def test_ascend_is_refused_where_there_is_none(tmp_path: Path, graph_mode: bool) -> None:
    source = checkpoints.build("llama", tmp_path)
    with pytest.raises(StartError, match="computes on CPU, expected Ascend"):
        open_runner(source, "mindspore", EngineConfig(device="ascend", graph_mode=graph_mode))
