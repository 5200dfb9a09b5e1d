"""Latent attention on the mindspore runtime: caches of latent vectors, and where there are none."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.inspection import summarize_checkpoint
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.capacity import cache_block_bytes
from mindspore_serving.llm.runtimes.layout import RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindspore import nodes, recording
from mindspore_serving.llm.runtimes.mindspore.cell import compile_graph
from mindspore_serving.llm.runtimes.mindspore.inputs import graph_inputs
from mindspore_serving.llm.runtimes.mindspore.latent import why_expanded
from mindspore_serving.llm.runtimes.mindspore.runner import TARGETS, PhaseGraphs
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
CONFIG = EngineConfig(block_size=8, kv_cache_memory=2**18)
SIZES_OF_KERNEL = {
    "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "num_hidden_layers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def minicpm3(root: Path) -> Path:
    return checkpoints.build("minicpm3", root, num_hidden_layers=1)


@pytest.fixture(scope="module")
def runner(minicpm3: Path) -> Runner:
    return open_runner(minicpm3, "mindspore", CONFIG)


@pytest.mark.parametrize(
    "name",
    [
        "minicpm3",
        pytest.param("deepseek-v2", marks=pytest.mark.long),
        pytest.param("deepseek-v2-lite", marks=pytest.mark.long),
        pytest.param("deepseek-v3", marks=pytest.mark.long),
    ],
)
def test_prompts_chunks_and_tokens_equal_the_reference(
    root: Path, minicpm3: Path, runner: Runner, name: str
) -> None:
    directory = minicpm3
    if name != "minicpm3":
        directory = checkpoints.build(name, root)
        runner = open_runner(directory, "mindspore", CONFIG)
    prompts = checkpoints.prompts(2, longest=30)
    answers = greedy(runner, prompts, 6, chunk=11, arrivals=[0, 2])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tuple(answer) == checkpoints.likeliest(directory, prompt, answer)
    whole = [*prompts[0], *answers[0]]
    expected = checkpoints.logits(directory, whole)
    assert relative_error(all_logits(runner, whole), expected) < 1e-4
    blocks = list(range(5))
    runner.run(Step((Row(whole[:20], 0, blocks, 1),)))
    rest = runner.run(Step((Row(whole[20:], 20, blocks, len(whole) - 20),)))
    assert relative_error(rest, expected[20:]) < 1e-4


def test_cached_token_is_a_latent_vector_and_a_rotated_key(runner: Runner) -> None:
    """32 + 8 numbers of 4 bytes, not twice 4 heads of 24."""
    assert runner.num_blocks == 2**18 // (8 * (32 + 8) * 4)
    assert {array.shape[1:] for array in runner._cache._arrays} == {(8, 1, 32), (8, 1, 8)}


def test_expanded_token_has_keys_and_values_of_every_head(minicpm3: Path) -> None:
    spec = open_definition(minicpm3)[1]
    assert cache_block_bytes(CONFIG, spec, 2) == 8 * (2 * 4 * 24) * 2
    assert cache_block_bytes(CONFIG, spec, 2, num_latent=1) == 8 * (32 + 8) * 2


def test_summary_of_a_model_counts_latent_vectors(minicpm3: Path) -> None:
    sizes = [
        summarize_checkpoint(minicpm3, runtime, has_accelerator=has).cache_bytes_per_token
        for runtime, has in (("mindspore", False), ("torch", True))
    ]
    assert sizes == [(32 + 8) * 4, 2 * 4 * 24 * 2]


def test_copied_blocks_and_a_shared_prefix_continue_as_their_source(
    minicpm3: Path, runner: Runner
) -> None:
    prompt = list(checkpoints.prompts(1, longest=20)[0])
    runner.run(Step((Row(prompt, 0, [0, 1, 2], 1),)))
    rows = (Row([7], 20, [0, 1, 5], 1), Row([9, 7], 16, [0, 1, 6], 2))
    got = runner.run(Step(rows, ((2, 5),)))
    for logits, tokens in zip(got[[0, 2]], [[*prompt, 7], [*prompt[:16], 9, 7]], strict=True):
        expected = checkpoints.logits(minicpm3, tokens)[-1]
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.fixture(scope="module")
def large(root: Path) -> Path:
    """Heads and sizes that the device's kernel takes."""
    return checkpoints.build("minicpm3", root / "large", **SIZES_OF_KERNEL)


def recorded(directory: Path, phase: str):
    checkpoint, spec, decoder = open_definition(directory, max_model_len=128)
    weights = GraphWeights(checkpoint, "mindspore.bfloat16")
    layers = tuple(spec.attention_layers)
    ops = recording.GraphOps(weights, phase, nodes.ASCEND, 128, layers, keeps_latent=True)
    graphs = PhaseGraphs(spec, decoder, weights, TARGETS["ascend"], keeps_latent=True)
    return recording.record(spec, decoder, ops), weights, graphs


@pytest.mark.parametrize(
    ("phase", "attention"),
    [
        pytest.param(nodes.PREFILL, "FlashAttention", marks=pytest.mark.long),
        (nodes.INCREMENT, "Mla"),
        pytest.param(nodes.CHUNKS, "ComposedMla", marks=pytest.mark.long),
    ],
)
def test_front_end_compiles_the_kernels_of_a_latent_cache(
    large: Path, phase: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore.graph.api import _cell_graph_executor

    def check(cell, *inputs):
        export = f"export.{cell.phase}.latent.{attention}"
        return _cell_graph_executor.compile(cell, *inputs, phase=export, do_convert=False)

    monkeypatch.setattr("mindspore.nn.Cell.compile", check)
    graph, weights, graphs = recorded(large, phase)
    names = {attribute: type(operator).__name__ for attribute, operator in graph.operators.items()}
    calls = [names.get(name) for line in graph.lines for name in re.findall(r"self\.(op\d+)", line)]
    assert calls.count(attention) == calls.count("ReshapeAndCache") == 1
    cell = compile_graph(graph, weights.parameters, phase, graphs.shapes(128))
    assert cell.phase == (nodes.PREFILL if phase == nodes.PREFILL else nodes.INCREMENT)


def test_several_new_tokens_have_a_graph_without_the_kernel(large: Path) -> None:
    graphs = recorded(large, nodes.INCREMENT)[2]

    def phase(count: int, past: int) -> str:
        row = Row([5] * count, past, [0], 1)
        layout = lay_out(Step((row,)), RunnerLimits(128, 1, 100, 128))
        return graphs.phase(graph_inputs(layout, layout.spans))

    assert phase(3, 0) == nodes.PREFILL
    assert phase(1, 3) == nodes.INCREMENT
    assert phase(2, 3) == nodes.CHUNKS
    assert [(len(row.tokens), row.start) for row in graphs.warm_up_rows()] == [
        (1, 0),
        (1, 1),
        (2, 1),
    ]


def test_latent_vectors_are_expanded_where_the_device_has_no_kernel(large: Path) -> None:
    spec = open_definition(large)[1]
    assert why_expanded(spec, nodes.ASCEND, (), has_adapters=False) == ""
    assert "mla is composed" in why_expanded(spec, nodes.ASCEND, {"mla"}, has_adapters=False)
    other = replace(spec, num_heads=4)
    reason = why_expanded(other, nodes.ASCEND, (), has_adapters=False)
    assert "512 + 64 features and 16, 32, 64, 128 heads" in reason
    assert why_expanded(other, nodes.COMPOSED, (), has_adapters=False) == ""


def test_adapters_have_an_expanded_cache(large: Path) -> None:
    spec = open_definition(large)[1]
    assert "adapters may change" in why_expanded(spec, nodes.COMPOSED, (), has_adapters=True)
