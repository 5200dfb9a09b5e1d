"""Rows of mixtures in the native runtime: sorted by expert, multiplied, and summed by token."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("transformers")

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native.codes import MAX_ROWS, NUM_COLUMNS, Column, OpCode
from mindspore_serving.llm.runtimes.native.kernels.choices import choices_address
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, instruction_set
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.stepping import all_logits

TASK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
TOKENS, TOP_K, EXPERTS, WIDTH = 9, 3, 5, 40
STRIDE = 48  # numbers from row to row, whole vectors


@pytest.fixture(scope="module")
def compute(tmp_path_factory):
    """Computes an operation of arrays."""
    compiler = Compiler(instruction_set(), tmp_path_factory.mktemp("choices"))

    def run(code, arrays, rows, **parameters):
        op = np.full(NUM_COLUMNS, -1, np.int64)
        for name, value in {**arrays, **parameters}.items():
            column, is_array = Column[name.upper()], isinstance(value, np.ndarray)
            op[column] = value.ctypes.data if is_array else value
            if name in ("out", "a", "b"):
                op[column + 1] = value.shape[1]
        TASK(choices_address(code, compiler))(op.ctypes.data, rows)

    return run


def chosen_experts(random):
    rows = [random.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]
    return np.pad(np.array(rows), ((0, 0), (0, 4))).astype(np.float32)


def ordered(compute, experts):
    of_row, rows = np.zeros((TOKENS * TOP_K, 16), np.float32), np.zeros((TOKENS, 16), np.float32)
    arrays = {"out": of_row, "a": experts, "p1": rows, "p5": np.full(EXPERTS, 7, np.int64)}
    compute(OpCode.EXPERT_ORDER, arrays, TOKENS * TOP_K, width=EXPERTS, p2=rows.shape[1], p4=TOP_K)
    return of_row[:, 0], rows


def test_rows_of_an_expert_are_neighbours(compute):
    experts = chosen_experts(np.random.default_rng(0))
    of_row, rows = ordered(compute, experts)
    assert (np.diff(of_row) >= 0).all()
    numbers = rows[:, :TOP_K].astype(int)
    assert sorted(numbers.ravel()) == list(range(TOKENS * TOP_K))
    np.testing.assert_array_equal(of_row[numbers], experts[:, :TOP_K])


@pytest.mark.parametrize("early", [False, True])
def test_weights_are_of_the_choices_before_or_after_an_expert(early, compute):
    random = np.random.default_rng(1)
    experts = chosen_experts(random)
    _, rows = ordered(compute, experts)
    x = random.standard_normal((TOKENS, STRIDE)).astype(np.float32)
    weights = random.random((TOKENS, 16)).astype(np.float32)
    gathered = np.zeros((TOKENS * TOP_K, STRIDE), np.float32)
    total = np.full((TOKENS, STRIDE), 7, np.float32)
    by, none = {"p1": weights, "p2": 16}, {"p1": -1, "p2": 16}
    size = {"width": WIDTH, "p4": TOP_K}
    arrays = {"out": gathered, "a": x, "b": rows}
    compute(OpCode.EXPERT_GATHER, arrays, TOKENS * TOP_K, **size, **(by if early else none))
    gathered **= 2  # in place of an expert
    arrays = {"out": total, "a": gathered, "b": rows}
    compute(OpCode.EXPERT_SUM, arrays, TOKENS, **size, **(none if early else by))
    factors = weights[:, :TOP_K].astype(np.float64) ** (2 if early else 1)
    expected = x[:, :WIDTH].astype(np.float64) ** 2 * factors.sum(1, keepdims=True)
    np.testing.assert_allclose(total[:, :WIDTH], expected, rtol=1e-5)


def test_a_long_prompt_has_the_logits_of_passes_of_few_tokens(tmp_path):
    directory = checkpoints.build("qwen3-moe", tmp_path, **checkpoints.two_layers("qwen3-moe"))
    runner = open_runner(directory, "native", EngineConfig(kv_cache_memory=2**20))
    prompt = [3 + i % 50 for i in range(MAX_ROWS + 30)]
    last = np.array(runner.run(Step((Row(prompt, 0, range(runner.num_blocks), 1),))))
    np.testing.assert_array_equal(last, all_logits(runner, prompt)[-1:])
