"""Ranks of the mindspore runtime: the graph of a rank, and processes with MindSpore's own sums."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint, cut_spec
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.mindspore import cluster, nodes, rank_opening, recording
from mindspore_serving.llm.runtimes.mindspore.ranks import Collectives, RankGraphOps
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from tests.cli.commands import run
from tests.e2e.harness import ROOT
from tests.llm import checkpoints

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
TWO = {"tensor_parallel": 2}
SERVED = [
    ("llama", TWO),
    pytest.param("qwen2", TWO, marks=pytest.mark.long),
    pytest.param("mixtral", TWO, marks=pytest.mark.long),
    pytest.param("llama3-tied", {"tensor_parallel": 4}, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def lines_of_rank(path: Path, rank: int, phase: str = nodes.PREFILL) -> list[str]:
    """The graph of a rank of two, with Ascend's primitives."""
    checkpoint, spec, decoder = open_definition(path, max_model_len=128)
    sharded = ShardedCheckpoint(checkpoint, spec, Shard(rank, 2))
    peers = SimpleNamespace(rank=rank, size=2)
    collectives = Collectives.of("hccl_world_group", peers, spec.vocab_size)
    ops = RankGraphOps(
        GraphWeights(sharded, "mindspore.bfloat16"), phase, nodes.ASCEND, 128,
        tuple(spec.attention_layers), collectives=collectives,
    )  # fmt: skip
    graph = recording.record(cut_spec(spec, 2), decoder, ops)
    names = {name: type(each).__name__ for name, each in graph.operators.items()}
    return [re.sub(r"self\.(op\d+)", lambda found: names[found[1]], line) for line in graph.lines]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_sum_follows_the_embedding_and_each_matrix_split_by_inputs(
    directory: Path, name: str
) -> None:
    lines = lines_of_rank(checkpoints.build(name, directory, **checkpoints.two_layers(name)), 1)
    sums = [line for line in lines if "AllReduce(" in line]
    assert len(sums) == 1 + 2 * 2
    summed = [re.search(r"AllReduce\((\w+)\)", line)[1] for line in sums]
    by_result = {
        result: line for line in lines for result in re.findall(r"\w+", line.split("=")[0])
    }
    made = [re.search(r"= (\w+)", by_result[operand])[1] for operand in summed[1:]]
    block = "TokenUnpermute" if name == "mixtral" else "MatMul"
    assert made == ["MatMul", block] * 2
    assert sum("AllGather(" in line for line in lines) == 1


def test_uneven_rows_of_the_vocabulary_are_padded_and_put_in_order(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SIZES", checkpoints.SIZES | {"vocab_size": 163})
    path = checkpoints.build("llama", directory / "uneven", num_hidden_layers=2)
    assert any("(2, -1, 82)" in line for line in lines_of_rank(path, 0))
    *_, last = lines_of_rank(path, 0)
    assert last.split(" = ")[1].startswith("ops.gather(")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), SERVED)
def test_ranks_equal_transformers_and_a_rank_that_dies_is_named(
    directory: Path, tmp_path: Path, name: str, sizes: dict[str, int]
) -> None:
    path = checkpoints.build(name, directory / "served", **checkpoints.two_layers(name))
    prompts = checkpoints.prompts(2, longest=30)
    words = [str(path), json.dumps(prompts), str(tmp_path / "logits.npy"), json.dumps(sizes)]
    done = run([sys.executable, "-m", "tests.llm.mindspore_ranks", *words], ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    expected = checkpoints.logits(path, prompts[0])
    assert np.abs(np.load(tmp_path / "logits.npy") - expected).max() < 1e-5 * np.abs(expected).max()
    for prompt, answer in zip(prompts, told["answers"], strict=True):
        assert tuple(answer) == checkpoints.likeliest(path, prompt, answer)
    assert "rank 1: ended by signal SIGKILL" in told["lost"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tensor_parallel": 3}, "expected a divisor of the model's 4 attention heads"),
        ({"tensor_parallel": 2, "composed_primitives": "all"}, "composed on a CPU"),
        ({"pipeline_parallel": 2}, "has no stages"),
    ],
)
def test_ranks_refuse_unsupported_options(
    directory: Path, options: dict[str, object], problem: str
) -> None:
    path = checkpoints.build("llama", directory / "refused", num_hidden_layers=2)
    with pytest.raises(StartError, match=problem):
        open_runner(path, "mindspore", EngineConfig(**options))


def test_a_server_under_msrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    everyone = SimpleNamespace(rank=0, size=2, minimum=lambda number: number)
    with pytest.raises(StartError, match="as msrun sets it.* start it without msrun"):
        cluster.connect(everyone, "CPU")


def test_a_process_that_has_met_other_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster._connection, "port", 4000)
    everyone = SimpleNamespace(rank=0, size=2, minimum=lambda number: min(number, 0))
    with pytest.raises(StartError, match="other ranks of MindSpore before.* a new process"):
        cluster.connect(everyone, "CPU")


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
    rank_opening._check_devices(2)
    with pytest.raises(StartError, match="over 4 ranks, but this process sees 2 Ascend devices"):
        rank_opening._check_devices(4)
