"""Formats of a SoC that reads weights and cache in tiles: what is cast, by shape, on a CPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes.layout import RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore import cache, nodes, recording
from mindspore_serving.llm.runtimes.mindspore import weights as graph_weights
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.inputs import graph_inputs, kernel_mask
from mindspore_serving.llm.runtimes.mindspore.primitives.attention import gathered
from mindspore_serving.llm.runtimes.mindspore.runner import TARGETS, GraphTarget, PhaseGraphs
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
TARGET = replace(TARGETS["ascend"], dtype="float16", soc="ascend310p")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the tensors that were cast to the format of tiles."""
    shapes: list[tuple[int, ...]] = []

    def record(tensor):
        shapes.append(tensor.shape)
        return tensor

    for module in (graph_weights, cache):
        monkeypatch.setattr(module, "in_fractal_format", record)
    return shapes


def graphs_of(path: Path, target: GraphTarget = TARGET) -> PhaseGraphs:
    checkpoint, spec, decoder = open_definition(path, max_model_len=128)
    options = {"is_fractal": target.is_fractal}
    weights = GraphWeights(checkpoint, f"mindspore.{target.dtype}", **options)
    return PhaseGraphs(spec, decoder, weights, target)


@pytest.mark.parametrize("name", ["llama", "llama3-tied"])
def test_matrices_of_products_are_cast_once_and_tables_are_not(
    directory: Path, cast: list[tuple[int, ...]], name: str
) -> None:
    graphs = graphs_of(checkpoints.build(name, directory, num_hidden_layers=1))
    for phase in (nodes.PREFILL, nodes.INCREMENT):
        graphs._graph(phase, 128, adapts=False)
    layer = [(128, 64), (64, 64), (192, 64), (64, 96)]  # qkv, output, gate and up, down
    head = [] if name == "llama3-tied" else [(checkpoints.SIZES["vocab_size"], 64)]
    assert sorted(cast) == sorted(layer + head)


def test_caches_have_the_features_of_all_heads_on_a_single_axis(
    directory: Path, cast: list[tuple[int, ...]]
) -> None:
    path = checkpoints.build("llama", directory / "cached", num_hidden_layers=1)
    (shape,) = graphs_of(path).shapes(128)
    assert shape.sizes == ((128, 32), (128, 32))
    made = cache.DeviceCache(3, [shape], TARGET.name, mindspore.float16)
    assert cast == [(3, 128, 32)] * 2
    assert made.keys[0].shape == (3, 128, 32)
    composed = replace(TARGET, composed=frozenset({"paged_attention"}))
    assert graphs_of(path, composed).shapes(128)[0].sizes[0] == (128, 2, 16)


@pytest.mark.parametrize("phase", [nodes.PREFILL, nodes.INCREMENT])
def test_front_end_compiles_flat_caches(
    directory: Path, cast: list[tuple[int, ...]], phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore.graph.api import _cell_graph_executor

    def check(cell, *inputs):
        export = f"export.310p.{phase}"
        return _cell_graph_executor.compile(cell, *inputs, phase=export, do_convert=False)

    monkeypatch.setattr("mindspore.nn.Cell.compile", check)
    graphs = graphs_of(checkpoints.build("llama", directory / "compiled", num_hidden_layers=1))
    graph = graphs._graph(phase, 128, adapts=False)
    assert isinstance(graph, recording.RecordedGraph)
    assert compile_graph(graph, graphs.weights.parameters, phase, graphs.shapes(128))


def test_composed_attention_reads_flat_caches_as_those_of_heads() -> None:
    blocks = np.random.default_rng(0).normal(0, 1, (3, 4, 2, 8)).astype(np.float32)
    tables = mindspore.Tensor(np.int32([[2, 0]]))
    plan = (None, mindspore.Tensor(np.arange(16, dtype=np.int32).reshape(2, 8)))
    found = [
        gathered(mindspore.Tensor(each), tables, plan, 2).asnumpy()
        for each in (blocks, blocks.reshape(3, 4, 16))
    ]
    np.testing.assert_array_equal(*found)


def test_mask_of_prompts_covers_the_longest_sequence() -> None:
    rows = (Row([5] * 3, 0, [0], 1), Row([5] * 7, 0, [1], 1))
    layout = lay_out(Step(rows), RunnerLimits(128, 2, 100, 128))
    mask = kernel_mask(
        graph_inputs(layout, layout.spans), is_prefill=True, is_bf16=False, is_complete=True
    )
    np.testing.assert_array_equal(mask, np.triu(np.full((7, 7), -10000.0), 1))


def test_flat_values_may_have_another_width() -> None:
    assert CacheShape(16, 2, 24, 8, is_flat=True).sizes == ((16, 48), (16, 16))
