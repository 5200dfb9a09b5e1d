"""The native runtime: logits of every family against the reference, caches, and what it refuses."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.attention_tasks import AttentionTasks
from mindspore_serving.llm.runtimes.native.codes import MAX_ROWS, Column, OpCode, StepColumn
from mindspore_serving.llm.runtimes.native.interpreter import PlanArrays, execute
from mindspore_serving.llm.runtimes.native.ops import NativeOps
from mindspore_serving.llm.runtimes.native.plan import ALIGNED, PlanRecorder
from mindspore_serving.llm.runtimes.native.products import Team
from mindspore_serving.llm.step import Row, StateSlots, Step
from tests.llm import architectures, checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = pytest.mark.torch
CONFIG = EngineConfig(block_size=8, kv_cache_memory=2**20, kv_cache_dtype="f32")
FAMILIES = (  # biases, Q/K norms, windows and softcap, ALiBi, learned positions, experts, states
    "qwen2", "qwen3", "gemma2", "gemma3", "baichuan2-13b", "gpt2", "qwen3-moe", "lfm2-biased",
    "qwen3_5", "falcon-h1-normed",
)  # fmt: skip
ALL = [
    pytest.param(name, marks=[] if name in FAMILIES else [pytest.mark.long])
    for name in (*checkpoints.ALL, *architectures.ALL)
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return checkpoints.build(
        "llama", tmp_path_factory.mktemp("native"), **checkpoints.two_layers("llama")
    )


@pytest.mark.parametrize("name", ALL)
def test_logits_are_those_of_the_reference(name, tmp_path):
    """A state is kept amid the prompt."""
    shallow = checkpoints.two_layers(name) if name in checkpoints.ALL else {}
    directory = checkpoints.build(name, tmp_path, **shallow)
    prompt = checkpoints.prompts(1, longest=45)[0]
    logits = all_logits(open_runner(directory, "native", CONFIG), prompt, kept=20)
    expected = checkpoints.logits(directory, prompt)
    assert np.abs(logits - expected).max() < 1e-5 * max(10, np.abs(expected).max())


def test_sixty_four_greedy_tokens_are_those_of_the_reference(llama):
    """Prompts of several passes come in chunks, beside sequences that go on."""
    prompts = checkpoints.prompts(3)
    runner = open_runner(llama, "native", CONFIG)
    answers = greedy(runner, prompts, 64, chunk=13, arrivals=[0, 1, 5])
    assert answers == [checkpoints.greedy(llama, prompt, 64) for prompt in prompts]


@pytest.mark.parametrize(("dtype", "limit"), [("f16", 0.003), ("bf16", 0.02), ("u8", 0.04)])
def test_sixty_four_greedy_tokens_of_smaller_caches_are_nearly_the_best(llama, dtype, limit):
    """Relative to the largest logit of the reference: a smaller cache decides ties alone."""
    prompts = checkpoints.prompts(3)
    runner = open_runner(llama, "native", replace(CONFIG, kv_cache_dtype=dtype))
    answers = greedy(runner, prompts, 64, chunk=13, arrivals=[0, 1, 5])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 64
        assert checkpoints.shortfall(llama, prompt, tuple(answer)) < limit


@pytest.mark.parametrize(("dtype", "limit"), [("f16", 0.003), ("bf16", 0.02), ("u8", 0.04)])
def test_smaller_caches_change_logits_little(llama, dtype, limit):
    prompt = checkpoints.prompts(1)[0]
    logits = all_logits(open_runner(llama, "native", replace(CONFIG, kv_cache_dtype=dtype)), prompt)
    assert 0 < relative_error(logits, checkpoints.logits(llama, prompt)) < limit


def test_logits_do_not_depend_on_the_number_of_threads(llama):
    """Heads are computed by all threads, products by chunks."""
    prompt = checkpoints.prompts(1, longest=45)[0]
    runners = (
        open_runner(llama, "native", replace(CONFIG, num_threads=number)) for number in (1, 3)
    )
    alone, together = (all_logits(runner, prompt) for runner in runners)
    np.testing.assert_array_equal(alone, together)


def test_blocks_are_stored_and_restored(llama):
    runner = open_runner(llama, "native", CONFIG)
    prompt = checkpoints.prompts(1)[0]
    table = list(range(runner.num_blocks))[: -(-(len(prompt) + 1) // 8)]
    before = runner.run(Step((Row(prompt, 0, table, 1),)))
    contents = [bytes(runner.read_block(block)) for block in table]
    assert {len(content) for content in contents} == {runner.block_bytes}
    runner.run(Step((Row([1] * len(prompt), 0, table, 1),)))
    for block, content in zip(table, contents, strict=True):
        runner.write_block(block, memoryview(content))
    after = runner.run(Step((Row(prompt[-1:], len(prompt) - 1, table, 1),)))
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize("name", ["lfm2-biased", "qwen3_5"])
def test_states_are_stored_and_restored(name, tmp_path):
    runner = open_runner(checkpoints.build(name, tmp_path), "native", CONFIG)
    prompt, table = checkpoints.prompts(1)[0], range(8)

    def run(tokens, start, read, write):
        row = Row(tokens, start, table, 1, state=StateSlots(read, write))
        return runner.run(Step((row,))).copy()

    run(prompt[:-1], 0, -1, 0)
    content = bytes(runner.read_state(0))
    assert len(content) == runner.state_bytes
    expected = run(prompt[-1:], len(prompt) - 1, 0, 1)
    runner.write_state(2, memoryview(content))
    np.testing.assert_array_equal(run(prompt[-1:], len(prompt) - 1, 2, 3), expected)
    other = run(prompt[-1:], len(prompt) - 1, 1, 3)
    assert np.abs(other - expected).max() > 1e-3


def test_logits_are_products_of_the_hidden_states(llama):
    runner = open_runner(llama, "native", CONFIG)
    step = Step((Row(checkpoints.prompts(1)[0], 0, range(8), 3),))
    logits, hidden = runner.run(step), runner.embed(step)
    assert hidden.shape == (3, runner.hidden_size)
    head = Checkpoint.open(llama).f32("lm_head.weight")
    np.testing.assert_allclose(hidden @ head.T, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            "model.embed_tokens.weight",
            "'model.embed_tokens.weight' has 100 rows, but vocab_size is",
        ),
        ("lm_head.weight", "the output matrix has 100 rows, but config.json has vocab_size"),
    ],
)
def test_tables_without_rows_for_all_tokens_are_refused(llama, tmp_path, tensor, message):
    directory = shutil.copytree(llama, tmp_path / "cut")
    tensors = load_file(directory / "model.safetensors")
    tensors[tensor] = tensors[tensor][:100].copy()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartError, match=message):
        open_runner(directory, "native", CONFIG)


def test_heads_that_do_not_fit_are_refused():
    ops = NativeOps(None, switches=False)
    q, k = ops.recorder.tensor(32), ops.recorder.tensor(8)
    with pytest.raises(StartError, match="4 heads of 16"):
        ops.attention(0, q, k, k, AttentionSpec(4, 1, 16, 1.0))
    with pytest.raises(StartError, match="expected as many features"):
        ops.add(q, k)


def test_a_part_outside_of_its_tensor_is_refused():
    recorder = PlanRecorder()
    x = recorder.tensor(16)
    recorder.add(OpCode.UNARY, {Column.OUT: recorder.tensor(16), Column.A: x.part(8, 16)}, p0=0)
    with pytest.raises(StartError, match="outside of its memory"):
        recorder.plan()


def test_tensors_share_memory_only_when_not_used_at_once():
    """A chain of additions needs memory for three tensors, however long it is."""
    recorder = PlanRecorder()
    first = x = recorder.tensor(16)
    for _ in range(10):
        out = recorder.tensor(16)
        recorder.add(OpCode.BINARY, {Column.OUT: out, Column.A: x, Column.B: first}, p0=0)
        x = out
    assert recorder.plan().arena.size == 3 * 16 * MAX_ROWS + ALIGNED


class Arena:
    """Operations over tensors between canaries, which only their outputs may change."""

    def __init__(self, code, parameters, widths):
        recorder = PlanRecorder()
        kept = recorder.tensor(1, is_kept=True)
        tensors = {column: recorder.tensor(width, is_kept=True) for column, width in widths.items()}
        recorder.add(code, tensors, (1e-5, 1.0), **parameters)
        recorder.add(OpCode.UNARY, {Column.OUT: kept, Column.A: kept}, p0=0)
        self.plan, self.out = recorder.plan(), tensors[Column.OUT]
        self.scratch = tensors.get(Column.P5)

    def run(self, tokens):
        """Compute; return which numbers have changed."""
        plan = self.plan
        guard = 4096
        whole = np.full(len(plan.arena) + 2 * guard, 0.5, np.float32)
        states = np.zeros(2**20, np.float32)
        no_numbers = np.zeros(0, np.int64)
        planned = PlanArrays(
            plan.operations[:1], plan.numbers[:1], np.zeros((0, 7), np.int64),
            np.array([states.ctypes.data], np.int64), Team(0, 0), AttentionTasks.of(1, 1),
        )  # fmt: skip
        step = np.zeros((tokens, len(StepColumn)), np.int64)
        step[:, StepColumn.STATE_READ] = -1
        arena = whole.ctypes.data + 4 * guard
        adapters = np.zeros((1, 1, 3), np.int64)
        gathered = np.arange(tokens)
        execute(planned, Memory(arena, step, no_numbers, gathered, adapters), tokens)
        return np.flatnonzero(whole != np.float32(0.5)) - guard


SMALL = st.integers(0, 5)
REQUIRED = {  # tensors beside OUT; of others A
    OpCode.ROPE_TABLES: [Column.B],
    OpCode.ROPE: [Column.A, Column.B],
    OpCode.BINARY: [Column.A, Column.B],
    OpCode.BROADCAST: [Column.A, Column.B],
    OpCode.QUERY_SCALE: [],
    OpCode.ROUTE: [Column.A, Column.P5],
    OpCode.STATE: [Column.A, Column.B],
}
OPTIONAL = {
    OpCode.RMS_NORM: [Column.B],
    OpCode.LAYER_NORM: [Column.B, Column.P2],
    OpCode.ROPE_TABLES: [Column.P0],
    OpCode.REDUCE: [Column.B],
    OpCode.ROUTE: [Column.B, Column.P1],
    OpCode.STATE: [Column.P2, Column.P5],
}
CHECKED = [code for code in OpCode if code not in (
    OpCode.PRODUCT, OpCode.ATTENTION, OpCode.ADAPT, OpCode.EXPERT_PRODUCT, OpCode.EXPERT_BIAS,
    OpCode.EXPERT_ORDER, OpCode.EXPERT_GATHER, OpCode.EXPERT_SUM,
)]  # fmt: skip


@given(data=st.data(), code=st.sampled_from(CHECKED), tokens=st.integers(1, MAX_ROWS))
@settings(max_examples=150)
def test_operations_are_refused_or_write_to_their_outputs_alone(data, code, tokens):
    """Whatever their numbers are; products, attention and experts have checks of their own."""
    optional = data.draw(st.sets(st.sampled_from(OPTIONAL.get(code, [Column.P6]))))
    columns = {Column.OUT, *REQUIRED.get(code, [Column.A]), *optional} - {Column.P6}
    widths = {column: data.draw(st.integers(1, 60)) for column in sorted(columns)}
    numbers = [column for column in Column if column >= Column.P0 and column not in columns]
    parameters = {column.name.lower(): data.draw(SMALL) for column in numbers}
    parameters |= {"width": data.draw(st.integers(1, 9)), "p6": 0}
    try:
        arena = Arena(code, parameters, widths)
    except StartError:
        return
    written = arena.run(tokens)
    allowed = [arena.out] if arena.scratch is None else [arena.out, arena.scratch]
    assert all(any(_holds(x, at) for x in allowed) for at in written.tolist())


def _holds(x, at):
    """Whether the number at that offset is one of the features of `x`."""
    row, feature = divmod(at - x.storage.offset, x.stride)
    return 0 <= row < MAX_ROWS and feature < x.width
