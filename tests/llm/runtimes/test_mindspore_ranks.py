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
from mindspore_serving.llm.parallel.msrun import MsrunRole
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint, cut_spec
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore import cluster, nodes, rank_opening, recording
from mindspore_serving.llm.runtimes.mindspore.primitives.table import make
from mindspore_serving.llm.runtimes.mindspore.ranks import Collectives, RankGraphOps
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Step
from tests.cli.commands import run
from tests.e2e.harness import ROOT
from tests.llm import checkpoints
from tests.llm.quantised_files import CASES, quantised
from tests.llm.rank_threads import ranks
from tests.llm.running import generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
TWO = {"tensor_parallel": 2}
SERVED = [
    pytest.param("llama", TWO, marks=pytest.mark.long),  # three processes import MindSpore
    pytest.param("qwen2", TWO, marks=pytest.mark.long),
    pytest.param("mixtral", TWO, marks=pytest.mark.long),
    pytest.param("llama", {**TWO, "pipeline_parallel": 2}, marks=pytest.mark.long),
    pytest.param("qwen3-moe", {**TWO, "expert_parallel": True}, marks=pytest.mark.long),
    pytest.param("llama3-tied", {"tensor_parallel": 4}, marks=pytest.mark.long),
    pytest.param("deepseek-v3", TWO, marks=pytest.mark.long),
    pytest.param("deepseek-v2", {**TWO, "expert_parallel": True}, marks=pytest.mark.long),
    pytest.param("minicpm3", TWO, marks=pytest.mark.long),
    pytest.param("gpt2", TWO, marks=pytest.mark.long),
    pytest.param("bloom", TWO, marks=pytest.mark.long),
    pytest.param("olmo2", TWO, marks=pytest.mark.long),
    pytest.param("gemma4-large", {**TWO, "pipeline_parallel": 2}, marks=pytest.mark.long),
    pytest.param("gemma4-moe", {**TWO, "expert_parallel": True}, marks=pytest.mark.long),
    pytest.param("gemma3n-uneven", {**TWO, "pipeline_parallel": 2}, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def recorded_rank(
    path: Path, rank: int, *, splits_experts: bool = True, phase: str = nodes.PREFILL,
    keeps_latent: bool = False,
) -> recording.RecordedGraph:  # fmt: skip
    """The graph of a rank of two, with Ascend's primitives."""
    checkpoint, spec, decoder = open_definition(path, max_model_len=128)
    shard, splits = Shard(rank, 2), {"splits_experts": splits_experts}
    sharded = ShardedCheckpoint(checkpoint, spec, shard, **splits)
    collectives = Collectives.of("hccl_world_group", shard, spec.vocab_size, **splits)
    ops = RankGraphOps(
        GraphWeights(sharded, "mindspore.bfloat16", keeps_integers=True), phase, nodes.ASCEND, 128,
        tuple(spec.attention_layers), collectives=collectives, keeps_latent=keeps_latent,
    )  # fmt: skip
    return recording.record(cut_spec(spec, 2), decoder, ops)


def named(graph: recording.RecordedGraph) -> list[str]:
    """Its lines, with the names of the operators."""
    names = {name: type(each).__name__ for name, each in graph.operators.items()}
    return [re.sub(r"self\.(op\d+)", lambda found: names[found[1]], line) for line in graph.lines]


def lines_of_rank(path: Path, rank: int, *, splits_experts: bool = True) -> list[str]:
    return named(recorded_rank(path, rank, splits_experts=splits_experts))


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


@pytest.mark.parametrize(
    ("case", "product"),
    [
        ("awq", "WeightQuantMatmul"),
        ("golden-stick-a16w8", "WeightQuantMatmul"),
        ("modelslim-w8a8-dynamic", "QuantMatmul"),
        ("modelslim-w8a8", "QuantMatmul"),
    ],
)
def test_products_of_integers_are_divided_over_ranks(
    directory: Path, case: str, product: str
) -> None:
    """Each sum is of a product with a rank's integers, or of the embedding."""
    target = directory / case
    sizes = {"num_hidden_layers": 1, "intermediate_size": 128}  # whole groups of 32 for a rank
    floats = checkpoints.build("llama", directory / "wide", **sizes)
    quantised(floats, target, CASES[case])
    lines = lines_of_rank(target / "quantised", 1)
    made = dict(line.split(" = ", 1) for line in lines if " = " in line)
    summed = re.findall(r"AllReduce\((\w+)\)", "\n".join(lines))
    assert [made[name].partition("(")[0] for name in summed[1:]] == [product] * 2


def test_a_rank_attends_with_its_heads_to_the_latent_vectors_of_all(directory: Path) -> None:
    sizes = {"num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512}
    path = checkpoints.build(
        "minicpm3", directory, **sizes, qk_rope_head_dim=64, num_hidden_layers=1
    )
    graph = recorded_rank(path, 1, phase=nodes.INCREMENT, keeps_latent=True)
    (kernel,) = [each for each in graph.operators.values() if type(each).__name__ == "Mla"]
    assert kernel.options[0] == 16
    assert sum("AllReduce(" in line for line in named(graph)) == 1 + 2


def test_uneven_rows_of_the_vocabulary_are_padded_and_put_in_order(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SIZES", checkpoints.SIZES | {"vocab_size": 163})
    path = checkpoints.build("llama", directory / "uneven", num_hidden_layers=2)
    assert any("(2, -1, 82)" in line for line in lines_of_rank(path, 0))
    *_, last = lines_of_rank(path, 0)
    assert last.split(" = ")[1].startswith("ops.gather(")


def test_a_rank_with_whole_experts_masks_the_rows_of_other_ranks(directory: Path) -> None:
    """They are sorted behind its own, without a product, and masked."""
    path = checkpoints.build("mixtral", directory, num_hidden_layers=2)
    count = json.loads((path / "config.json").read_text())["num_local_experts"] // 2
    lines = "\n".join(lines_of_rank(path, 1, splits_experts=False))
    assert f" - {count}" in lines
    assert f"[:{count}].astype(mindspore.int64)" in lines
    products = re.findall(r"(\w+) = GroupedMatmul", lines)
    assert len(products) == 2 * 2
    for product in products[1::2]:
        assert re.search(rf"ops.masked_fill\({product}, .* >= {count}, 1\), 0.0\)", lines)


@pytest.mark.parametrize("name", ["qwen2", pytest.param("minicpm3", marks=pytest.mark.long)])
def test_two_stages_equal_transformers(directory: Path, name: str) -> None:
    """In threads of this process: stages have no collectives.  One model has a latent cache."""
    path = checkpoints.build(name, directory, num_hidden_layers=2)
    prompts = checkpoints.prompts(2, longest=30)
    with ranks(path, 2, "mindspore", by="pipeline_parallel", block_size=8) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, 6), 6, chunk=7)
        row = Row(prompts[0], 0, list(range(-(-len(prompts[0]) // 8))), 1)
        (vector,) = runner.embed(Step((row,)))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tuple(answer) == checkpoints.likeliest(path, prompt, answer)
    assert vector.shape == (checkpoints.SIZES["hidden_size"],)


def test_product_of_experts_without_rows_is_finite() -> None:
    x, weight = (mindspore.Tensor(np.ones(shape, np.float32)) for shape in [(2, 3), (2, 3, 4)])
    product = make("grouped_matmul", "composed", may_have_no_rows=True)
    counts = mindspore.Tensor(np.zeros(2, np.int64))
    assert np.isfinite(product(x, weight, counts).asnumpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), SERVED)
def test_ranks_equal_transformers_and_a_rank_that_dies_is_named(
    directory: Path, tmp_path: Path, name: str, sizes: dict[str, int]
) -> None:
    sizes_of_model = checkpoints.two_layers(name) if name in checkpoints.ALL else {}
    path = checkpoints.build(name, directory / "served", **sizes_of_model)
    prompts = checkpoints.prompts(2, longest=30)
    words = [str(path), json.dumps(prompts), str(tmp_path / "logits.npy"), json.dumps(sizes)]
    done = run([sys.executable, "-m", "tests.llm.mindspore_ranks", *words], ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    expected = checkpoints.logits(path, prompts[0])
    assert np.abs(np.load(tmp_path / "logits.npy") - expected).max() < 2e-5 * np.abs(expected).max()
    for prompt, answer in zip(prompts, told["answers"], strict=True):
        assert tuple(answer) == checkpoints.likeliest(path, prompt, answer)
    assert "rank 1: ended by signal SIGKILL" in told["lost"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tensor_parallel": 3}, "expected a divisor of the model's 4 attention heads"),
        ({"tensor_parallel": 2, "composed_primitives": "all"}, "composed on a CPU"),
        ({"tensor_parallel": 2, "expert_parallel": True}, "has no experts: leave it out"),
        ({"expert_parallel": True}, "has no experts: leave it out"),
        ({"pipeline_parallel": 3}, "expected at most 2, the number of the model's layers"),
    ],
)
def test_ranks_refuse_unsupported_options(
    directory: Path, options: dict[str, object], problem: str
) -> None:
    path = checkpoints.build("llama", directory / "refused", num_hidden_layers=2)
    with pytest.raises(StartError, match=problem):
        open_runner(path, "mindspore", EngineConfig(**options))


def test_ranks_keep_their_heartbeats_to_the_scheduler() -> None:
    """Without them they disconnect once, which ended a rank on a busy machine by SIGSEGV."""
    assert "MS_DISABLE_HEARTBEAT" not in cluster.cluster_variables(0, 2, 4000, 0)


def test_ranks_of_msrun_share_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "read_role", lambda: MsrunRole(0, 4, "127.0.0.1", 8118))
    peers = SimpleNamespace(rank=0, size=2, minimum=lambda number: number)
    with pytest.raises(StartError, match="connected 4 ranks, but tensor_parallel is 2: leave pipe"):
        cluster.connect(peers, 0)


def test_a_process_that_has_met_other_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster._connection, "port", 4000)
    peers = SimpleNamespace(rank=0, size=2, minimum=lambda number: min(number, 0))
    with pytest.raises(StartError, match="other ranks of MindSpore before.* a new process"):
        cluster.connect(peers, 0)


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
    rank_opening._check_devices(2)
    with pytest.raises(StartError, match="over 4 ranks, but this process sees 2 Ascend devices"):
        rank_opening._check_devices(4)
