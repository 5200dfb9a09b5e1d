"""LoRA adapters and embeddings of the mindspore runtime, against merged models and transformers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

import torch
import transformers

from mindspore_serving.llm.checkpoint.lora import read_adapter
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.adapters import match_adapter
from mindspore_serving.llm.runtimes.mindspore import nodes, recording
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.lora_files import ATTENTION, INNER, OUTSIDE, adapter, merged, write

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


class Adapted(NamedTuple):
    """A runner, its model, and two adapters with the models that they are."""

    runner: Any
    model: Path
    adapters: list[Path]
    merged: list[Path]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    model = checkpoints.build("llama", folder, num_hidden_layers=1)
    paths, models = [], []
    for seed, modules in enumerate((ATTENTION, (*INNER, *OUTSIDE))):
        tensors = adapter(model, modules, seed)
        paths.append(write(folder / f"adapter-{seed}", tensors))
        models.append(merged(model, tensors, folder / f"merged-{seed}"))
    options = {"block_size": 8, "kv_cache_memory": 2**20, "max_loras": 2}
    runner = open_runner(model, "mindspore", EngineConfig(**options, adapters={"a": paths[0]}))
    yield Adapted(runner, model, paths, models)
    runner.close()


def step(runner: Any, requested: list[tuple[tuple[int, ...], int]]) -> Step:
    """All logits of the prompts, each with its adapter."""
    free = iter(range(runner.num_blocks))
    return Step(
        tuple(
            Row(
                prompt, 0, [next(free) for _ in range(-(-len(prompt) // 8))], len(prompt), number
            )  # fmt: skip
            for prompt, number in requested
        )
    )


def test_rows_of_adapters_match_merged_models_and_loading_compiles_nothing(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two adapters and of none in one step, and after each load and unload."""
    from mindspore.graph.api import _CellGraphExecutor

    compiles = []
    compile_cell = _CellGraphExecutor.compile

    def counted(self, *args, **kwargs):
        phase, is_new = compile_cell(self, *args, **kwargs)
        compiles.append(is_new)
        return phase, is_new

    monkeypatch.setattr(_CellGraphExecutor, "compile", counted)
    runner, (first, second) = adapted.runner, adapted.merged
    prompts = ((3, 4, 5), (7, 8, 9), checkpoints.prompts(1)[0])
    changes = match_adapter(read_adapter(adapted.adapters[1]), runner.base, "adapter")
    runner.load_adapter(5, changes)
    models = {0: adapted.model, 1: first, 5: second}
    requested = [(prompts[0], 5), (prompts[1], 0), (prompts[0], 1), (prompts[2], 5)]
    expect(runner, requested, models)
    runner.unload_adapter(1)
    assert set(runner.adapters) == {5}
    expect(runner, [(prompts[1], 5), (prompts[0], 0)], models)
    runner.unload_adapter(5)
    runner.load_adapter(1, match_adapter(read_adapter(adapted.adapters[0]), runner.base, "adapter"))
    expect(runner, [(prompts[1], 1)], models)
    assert compiles
    assert not any(compiles)


def expect(
    runner: Any, requested: list[tuple[tuple[int, ...], int]], models: dict[int, Path]
) -> None:
    logits = runner.run(step(runner, requested))
    ends = np.cumsum([len(prompt) for prompt, _ in requested])
    for rows, (prompt, number) in zip(np.split(logits, ends[:-1]), requested, strict=True):
        np.testing.assert_allclose(rows, checkpoints.logits(models[number], prompt), atol=1e-3)


def test_embeddings_are_hidden_states_of_transformers(adapted: Adapted) -> None:
    prompt = checkpoints.prompts(1)[0]
    states = adapted.runner.embed(step(adapted.runner, [(prompt, 0)]))
    model = transformers.AutoModel.from_pretrained(adapted.model).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).last_hidden_state[0].numpy()
    assert states.dtype == np.float32
    np.testing.assert_allclose(states, expected, atol=1e-4)


@pytest.mark.parametrize(
    "phase", [nodes.INCREMENT, pytest.param(nodes.PREFILL, marks=pytest.mark.long)]
)
def test_front_end_compiles_adapters_over_the_joined_matrices(
    adapted: Adapted, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of Ascend's primitives shares its weights with the one without adapters."""
    from mindspore.graph.api import _cell_graph_executor

    def check(cell, *inputs):
        export = f"export.{cell.phase}"
        return _cell_graph_executor.compile(cell, *inputs, phase=export, do_convert=False)

    monkeypatch.setattr("mindspore.nn.Cell.compile", check)
    checkpoint, spec, decoder = open_definition(adapted.model, max_model_len=128)
    weights = GraphWeights(checkpoint, "mindspore.bfloat16")
    named = []
    for uses in (None, {}):
        ops = recording.GraphOps(weights, phase, nodes.ASCEND, 128, (0,), uses=uses)
        graph = recording.record(spec, decoder, ops)
        named.append(set(re.findall(r"self\.w\d+", "\n".join(graph.lines))))
    assert named[0] == named[1]
    compile_graph(graph, weights.parameters, phase, [CacheShape(128, *spec.heads[0])])
    assert {use for use, _ in graph.uses} == {"table", "matrix"}
    assert len(graph.uses) == len((*INNER, *OUTSIDE))
