"""Graphs of the mindspore runtime: compiled once, for steps of every shape, also of primitives."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.layout import TokenSpan
from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore import nodes, recording, runner
from mindspore_serving.llm.runtimes.mindspore import weights as graph_weights
from mindspore_serving.llm.runtimes.mindspore.best import BestChoices
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.inputs import (
    GraphInputs,
    kernel_mask,
    similar_spans,
)
from mindspore_serving.llm.runtimes.mindspore.nodes import GraphRecorder
from mindspore_serving.llm.runtimes.mindspore.opening import device_memory
from mindspore_serving.llm.runtimes.mindspore.primitives.basic import ComposedRope
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.running import advance, check_crowd, generate, generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
SMALL = EngineConfig(block_size=8, kv_cache_memory=2**20, max_num_seqs=2, max_num_batched_tokens=30)
PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [20, 21, 22])
# The first two have what most have; others have attention, blocks or positions of their own.
COMPILED = (
    *("llama", "qwen2-moe"),
    *(name for name in checkpoints.ALL if name != "llama"),
    *("glm4-moe", "gpt-oss", "deepseek-v2", "deepseek-v3", "gemma", "gemma3n", "gemma4"),
    *("bloom", "glm4", "minicpm3"),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def llama(directory: Path) -> Path:
    return checkpoints.build("llama", directory / "alone", num_hidden_layers=2)


@pytest.fixture(scope="module")
def compiled(llama: Path) -> Runner:
    return open_runner(llama, "mindspore", SMALL)


def test_refused_row_leaves_the_cache_unchanged(llama: Path, compiled: Runner) -> None:
    prompt = checkpoints.prompts(1, longest=30)[0]
    (text,) = texts(compiled, [prompt], 4)
    advance(compiled, [text])
    overwriting = Row([1] * 8, 0, text.blocks, 1)
    with pytest.raises(ServingError, match="row 1 has"):
        compiled.run(Step((overwriting, Row([1], 0, [compiled.num_blocks], 1))))
    (answer,) = generate(compiled, [text], 4)
    assert answer == checkpoints.likeliest(llama, prompt, answer)


def test_concurrent_requests_match_the_reference(llama: Path) -> None:
    """Guesses are verified beside texts that have none."""
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
    check_crowd(llama, "mindspore", **sizes, num_speculative_tokens=3, layers=2)


def test_nothing_is_compiled_after_the_start(
    compiled: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the past, the sequences and their tokens."""
    from mindspore.graph.api import _CellGraphExecutor

    compiles = []
    compile_cell = _CellGraphExecutor.compile

    def counted(self, *args, **kwargs):
        phase, is_new = compile_cell(self, *args, **kwargs)
        compiles.append(is_new)
        return phase, is_new

    monkeypatch.setattr(_CellGraphExecutor, "compile", counted)
    batch = texts(compiled, checkpoints.prompts(3, seed=4, longest=50), 9)
    generate_staggered(compiled, batch, 9, chunk=23)
    assert len(compiles) > 9
    assert not any(compiles)


def test_copied_blocks_continue_as_their_source(llama: Path, compiled: Runner) -> None:
    prompt = checkpoints.prompts(1, longest=20)[0]
    (text,) = texts(compiled, [prompt], 4)
    compiled.run(Step((Row(prompt, 0, text.blocks, 1),)))
    count = -(-len(prompt) // compiled.block_size)
    copies = [compiled.num_blocks - 1 - i for i in range(count)]
    step = Step(
        (Row([7], len(prompt), [*copies, compiled.num_blocks - 9], 1),),
        tuple(zip(text.blocks[:count], copies, strict=True)),
    )
    expected = checkpoints.logits(llama, [*prompt, 7])[-1]
    assert np.abs(compiled.run(step)[0] - expected).max() < 1e-3 * np.abs(expected).max()


def recorded(name: str, directory: Path, phase: str):
    source = directory / name
    if not source.exists():
        checkpoints.build(name, directory)
    checkpoint, spec, decoder = open_definition(source, max_model_len=128)
    weights = GraphWeights(checkpoint, "mindspore.bfloat16")
    ops = recording.GraphOps(weights, phase, nodes.ASCEND, 128, tuple(spec.attention_layers))
    shapes = [CacheShape(128, *spec.heads[layer]) for layer in spec.attention_layers]
    return recording.record(spec, decoder, ops), weights, shapes


def test_bfloat16_weights_are_loaded_bit_for_bit(directory: Path) -> None:
    source = checkpoints.build("qwen2", directory, dtype="bfloat16")
    checkpoint, _, _ = open_definition(source, max_model_len=128)
    weights = GraphWeights(checkpoint, "mindspore.bfloat16")
    names = tuple(f"model.layers.0.self_attn.{leaf}_proj.weight" for leaf in "qkv")
    attribute, shape = weights.matrix(names)
    weights.load()
    parameter = weights.parameters[attribute]
    dtypes, _, bits = zip(*(checkpoint.raw(name) for name in names), strict=True)
    assert set(dtypes) == {"BF16"}
    assert (parameter.dtype, parameter.shape) == (mindspore.bfloat16, shape)
    assert (parameter.asnumpy().view(np.uint16) == np.concatenate(bits)).all()


def test_float16_weights_are_those_of_the_checkpoint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_weights, "PIECE", 100)
    source = checkpoints.build("qwen2", directory, dtype="bfloat16")
    checkpoint, _, _ = open_definition(source, max_model_len=128)
    weights = GraphWeights(checkpoint, "mindspore.float16")
    attribute, _ = weights.matrix(("lm_head.weight",))
    weights.load()
    found = weights.parameters[attribute].asnumpy()
    assert found.dtype == np.float16
    assert (found == checkpoint.f32("lm_head.weight").astype(np.float16)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "qint4x2"])
def test_parameter_shares_the_memory_of_its_tensor(dtype: str) -> None:
    tensor = mindspore.Tensor(np.ones((4, 6), np.int8), dtype=getattr(mindspore, dtype))
    parameter = graph_weights._parameter("w0", tensor)
    assert parameter.data_ptr() == tensor.data_ptr()
    assert (parameter.name, parameter.shape, parameter.dtype) == ("w0", (4, 6), tensor.dtype)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in COMPILED[:2]))
        for name in COMPILED
    ],
)
@pytest.mark.parametrize("phase", [nodes.PREFILL, nodes.INCREMENT])
def test_front_end_compiles_the_graph_of_primitives(
    name: str, phase: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels, which a CPU lacks."""
    from mindspore.graph.api import _cell_graph_executor

    def check(cell, *inputs):
        export = f"export.{cell.phase}"
        return _cell_graph_executor.compile(cell, *inputs, phase=export, do_convert=False)

    monkeypatch.setattr("mindspore.nn.Cell.compile", check)
    graph, weights, shapes = recorded(name, directory, phase)
    cell = compile_graph(graph, weights.parameters, phase, shapes)
    assert cell.phase == phase


@pytest.mark.parametrize("phase", [nodes.PREFILL, nodes.INCREMENT])
def test_each_layer_writes_its_cache_before_attention(directory: Path, phase: str) -> None:
    graph, _, shapes = recorded("llama", directory, phase)
    names = {attribute: type(operator).__name__ for attribute, operator in graph.operators.items()}
    calls = [names.get(name) for line in graph.lines for name in re.findall(r"self\.(op\d+)", line)]
    attention = "FlashAttention" if phase == nodes.PREFILL else "PagedAttention"
    assert calls.count("ReshapeAndCache") == calls.count(attention) == len(shapes)
    for layer in range(len(shapes)):
        (write,) = (i for i, line in enumerate(graph.lines) if f"key_caches[{layer}], value" in line
                    and "slot_mapping" in line)  # fmt: skip
        written = graph.lines[write].split(" = ")[0]
        assert graph.lines[write + 1].endswith(f", {written})")
        assert "ops.depend(" in graph.lines[write + 1]


def test_matrices_of_the_same_input_are_joined(directory: Path) -> None:
    """Queries, keys and values; gate and up, before the kernel that takes both."""
    graph, _, shapes = recorded("llama", directory, nodes.INCREMENT)
    names = {attribute: type(operator).__name__ for attribute, operator in graph.operators.items()}
    calls = [names.get(name) for line in graph.lines for name in re.findall(r"self\.(op\d+)", line)]
    assert calls.count("MatMul") == 4 * len(shapes) + 1
    places = [place for place, name in enumerate(calls) if name == "Swiglu"]
    assert all(calls[place - 1] == "MatMul" for place in places)
    assert len(places) == len(shapes)
    assert not any("astype" in line and "self.w" in line for line in graph.lines[4:])


def test_queries_are_rotated_with_their_keys(directory: Path) -> None:
    graph, _, shapes = recorded("qwen3", directory, nodes.INCREMENT)
    (rope,) = (a for a, operator in graph.operators.items() if "Rotary" in type(operator).__name__)
    turned = [line for line in graph.lines if f"self.{rope}(" in line]
    assert len(turned) == len(shapes)
    assert all(re.match(r"x\d+_q, x\d+ = ", line) for line in turned)


def inputs(lengths: list[int], counts: list[int]) -> GraphInputs:
    positions = [np.arange(n - count, n) for n, count in zip(lengths, counts, strict=True)]
    empty = np.zeros(0, np.int32)
    return GraphInputs(
        empty, np.concatenate(positions).astype(np.int32), empty, np.array(lengths, np.int32),
        np.array(counts, np.int32), empty, empty, empty, 0,
    )  # fmt: skip


def test_mask_of_several_new_tokens_hides_the_keys_after_each() -> None:
    mask = kernel_mask(inputs([4, 2], [2, 1]), is_prefill=False, is_bf16=True)
    hidden = -10000
    assert mask.tolist() == [[0, 0, 0, hidden], [0, 0, 0, 0], [0, 0, hidden, hidden]]


def test_mask_of_single_new_tokens_is_not_read() -> None:
    mask = kernel_mask(inputs([4, 2], [1, 1]), is_prefill=False, is_bf16=True)
    assert mask.tolist() == [[0]]


@pytest.mark.parametrize(("is_bf16", "value"), [(True, 1), (False, -10000)])
def test_mask_of_prompts_is_strictly_upper_triangular(is_bf16: bool, value: int) -> None:
    mask = kernel_mask(inputs([4], [4]), is_prefill=True, is_bf16=is_bf16)
    assert mask.shape == (128, 128)
    assert (mask == np.triu(np.ones((128, 128)), 1) * value).all()


def calls(lengths: list[int], widths: list[int]) -> list[list[int]]:
    """The lengths of the sequences of each call."""
    ends = np.cumsum(widths).tolist()
    blocks = np.zeros(1, np.int64)
    spans = tuple(
        TokenSpan(end - width, end, length, blocks)
        for end, width, length in zip(ends, widths, lengths, strict=True)
    )
    return [[span.length for span in call] for call in similar_spans(spans)]


def test_step_is_split_where_the_number_of_new_tokens_changes() -> None:
    assert calls([9, 8, 7, 6], [1, 1, 6, 1]) == [[9, 8], [7], [6]]


def test_step_is_split_where_keys_would_be_padded_much() -> None:
    assert calls([50, 100, 60], [1, 1, 1]) == [[50, 100, 60]]
    assert calls([100, 30000, 29000, 90], [1, 1, 1, 1]) == [[100], [30000, 29000], [90]]


def test_step_is_split_where_keys_would_take_much_memory() -> None:
    assert calls([30000] * 5, [1] * 5) == [[30000] * 2, [30000] * 2, [30000]]


def test_cache_takes_the_rest_of_the_devices_memory() -> None:
    memory = device_memory(1000 << 20, 600 << 20, 1 << 20, 2048)
    assert memory.free == (900 - 600) << 20
    assert "90 % of the device's 1000 MiB" in memory.reason


def test_weights_that_leave_no_block_are_refused_with_advice() -> None:
    with pytest.raises(StartError, match="take 899 MiB of .* lower max_num_batched_tokens"):
        device_memory(1000 << 20, 899 << 20, 2 << 20, 2048)


def test_ascend_is_refused_where_there_is_none(llama: Path) -> None:
    with pytest.raises(StartError, match="no Ascend device: .* install the driver"):
        open_runner(llama, "mindspore", EngineConfig(device="ascend"))


def test_an_operator_that_is_wrong_on_the_device_is_composed() -> None:
    graph = GraphRecorder(None, "ascend", frozenset({"rope"}))
    for name in ("rope", "rms_norm"):
        graph.operator(name)
    rope, norm = graph.operators.values()
    assert isinstance(rope, ComposedRope)
    assert norm.name == "RmsNorm"


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 9}])
def test_tokens_chosen_on_the_device_are_those_of_the_host(
    compiled: Runner, params: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without reading all logits."""
    engine = Engine(compiled, None, replace(SMALL, max_num_batched_tokens=8))
    requests = [SamplingParams(**params, seed=seed, max_tokens=5, n=2) for seed in (1, 2)]

    def answers(name: str) -> list[tuple[int, ...]]:
        for index, (request, prompt) in enumerate(zip(requests, PROMPTS, strict=True)):
            engine.add(f"{name}{index}", prompt, request)
        found = defaultdict(tuple)
        while engine.has_work:
            for request_id, piece in engine.step():
                found[request_id[-1], piece.index] += piece.token_ids
        return sorted(found.items())

    expected = answers("host")
    compiled.choose_on_device()
    steps = []
    run_best = compiled.run_best
    monkeypatch.setattr(compiled, "run_best", lambda *args: steps.append(1) or run_best(*args))
    monkeypatch.setattr(compiled, "run", lambda step: logits_of_none(step, run))
    run = type(compiled).run.__get__(compiled)
    assert answers("device") == expected
    assert len(steps) >= 5
    compiled.max_best = 0


def logits_of_none(step: Step, run) -> np.ndarray:
    """Run a step that needs no logits."""
    assert not any(row.num_logits for row in step.rows)
    return run(step)


def test_device_that_chooses_other_logits_is_not_used(
    compiled: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here NaN is the least, as in some kernels."""
    choose = BestChoices.choose

    def without_nan(self, logits, count):
        return choose(self, mindspore.Tensor(np.nan_to_num(logits.asnumpy(), nan=-1e30)), count)

    monkeypatch.setattr(BestChoices, "choose", without_nan)
    logged = []
    monkeypatch.setattr(runner.log, "warning", lambda text, *values: logged.append(text % values))
    compiled.choose_on_device()
    assert compiled.max_best == 0
    assert "the 16 largest of known numbers are others): all logits are copied" in logged[0]
