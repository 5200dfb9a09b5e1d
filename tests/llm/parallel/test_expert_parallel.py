"""Ranks with whole experts: which rank has which, outputs of one process, counts, options."""

import itertools
import json
import random

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import expert_counts
from mindspore_serving.llm.parallel.experts import assign_experts, held_by, rank_loads
from mindspore_serving.llm.parallel.shards import Shard
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.quantised_files import CASES, quantised
from tests.llm.rank_threads import ranks
from tests.llm.running import check, generate_staggered, texts

pytestmark = pytest.mark.torch
COUNT = 9  # more than a block of torch
RUNTIMES = pytest.mark.parametrize("runtime", ["torch", "openvino"])
EXPERTS = {"expert_parallel": True}
STEP = Step((Row(checkpoints.prompts(1)[0][:9], 0, [3, 1], 9), Row((7,), 0, [2], 1)))


# --- placement ------------------------------------------------------------------------------------


def skewed(count, seed):
    """Counts of a few hot experts and many others, in any order."""
    numbers = random.Random(seed)
    counts = [int(1000 / (i + 1) ** 1.2 * numbers.uniform(0.5, 1.5)) for i in range(count)]
    numbers.shuffle(counts)
    return counts


def rooms(num_experts, num_ranks, spare):
    return [
        min(num_experts, Shard(rank, num_ranks).of(num_experts).count + spare)
        for rank in range(num_ranks)
    ]


def least_peak(counts, num_ranks, spare):
    """The load of the most loaded rank in the best of all placements, by trying all."""
    subsets = [
        ranks
        for size in range(1, num_ranks + 1)
        for ranks in itertools.combinations(range(num_ranks), size)
    ]
    room, peak = rooms(len(counts), num_ranks, spare), float("inf")
    for placement in itertools.product(subsets, repeat=len(counts)):
        held = np.bincount([rank for ranks in placement for rank in ranks], minlength=num_ranks)
        if (held <= room).all():
            peak = min(peak, rank_loads(placement, counts, num_ranks).max())
    return peak


@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "spare", "limit"),
    [(6, 2, 0, 1.1), (6, 2, 1, 1.15), (4, 3, 1, 1.25), (5, 2, 2, 1.1)],
)
def test_the_most_loaded_rank_has_little_more_than_in_the_best_placement(
    num_experts, num_ranks, spare, limit
):
    ratios = []
    for seed in range(6):
        counts = skewed(num_experts, seed)
        peak = rank_loads(assign_experts(counts, num_ranks, spare), counts, num_ranks).max()
        ratios.append(peak / least_peak(counts, num_ranks, spare))
    assert 0.999 < min(ratios) <= max(ratios) < limit


@pytest.mark.parametrize(("num_experts", "num_ranks"), [(8, 8), (60, 7), (128, 4), (3, 2)])
@pytest.mark.parametrize("spare", [0, 1, 5, 1000])
def test_every_expert_is_on_a_rank_and_no_rank_has_more_than_fit(num_experts, num_ranks, spare):
    placement = assign_experts(skewed(num_experts, 3), num_ranks, spare)
    assert all(ranks and len(set(ranks)) == len(ranks) for ranks in placement)
    held = [sum(rank in ranks for ranks in placement) for rank in range(num_ranks)]
    assert all(map(int.__le__, held, rooms(num_experts, num_ranks, spare)))
    assert min(held) > 0


def test_without_counts_ranks_have_as_many_experts_and_no_copies():
    assert assign_experts([0] * 5, 2, spare=2) == [(1,), (0,), (1,), (0,), (1,)]


def test_a_hot_expert_gets_copies_and_even_experts_get_none():
    placement = assign_experts([900, 10, 10, 10, 10, 10, 10, 10], 4, spare=1)
    assert sorted(placement[0]) == [0, 1, 2, 3]
    assert all(len(ranks) == 1 for ranks in assign_experts([100] * 8, 4, spare=2))


def test_each_token_of_an_expert_is_computed_by_a_single_rank():
    placement = assign_experts([900, 500, *[1] * 10], 3, spare=2)
    held = [held_by(rank, placement) for rank in range(3)]
    for expert, token in itertools.product(range(12), range(7)):
        indices = [each.indices[expert, token % each.copies[expert]] for each in held]
        computing = [rank for rank, index in enumerate(indices) if index >= 0]
        assert len(computing) == 1
        rank = computing[0]
        assert held[rank].numbers[indices[rank]] == expert
    shared = next(i for i, each in enumerate(placement) if len(each) > 1)
    assert len({each.indices[shared, 0] >= 0 for each in held}) == 2  # one rank has the first token


# --- outputs --------------------------------------------------------------------------------------


def write_counts(path, layers, count, *, hot):
    """A file by which expert `hot` got most of the tokens."""
    row = [100 if expert == hot else 5 for expert in range(count)]
    path.write_text(json.dumps({"layers": {str(layer): row for layer in layers}}))
    return {"expert_counts": str(path), "expert_replicas": 1, **EXPERTS}


@pytest.fixture(scope="module")
def build(built):
    def make(name):
        path = built / name
        return path if path.exists() else checkpoints.build(name, built)

    return make


@RUNTIMES
@pytest.mark.parametrize(
    ("name", "size"), [("mixtral", 4), ("deepseek-v3", 2), ("gpt-oss", 2), ("gemma4-moe", 2)]
)
def test_ranks_with_whole_experts_generate_the_tokens_of_the_reference(build, runtime, name, size):
    path, prompts = build(name), [(5,), *checkpoints.prompts(2)]
    with ranks(path, size, runtime, **EXPERTS) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=7)
    check(path, prompts, answers)


@RUNTIMES
def test_logits_are_those_of_a_process_also_with_copies_of_an_expert(build, runtime, tmp_path):
    path = build("qwen3-moe")
    options = write_counts(tmp_path / "counts", (0, 2), 8, hot=3)
    alone = open_runner(path, runtime, EngineConfig(dtype="f32", kv_cache_memory=2**20))
    expected = alone.run(STEP)
    with ranks(path, 2, runtime, block_size=32, **options) as runner:
        logits = runner.run(STEP)
        held = [set(each.experts.held_in(2).numbers) for each in runner.runners]
    assert 3 in held[0] & held[1]
    assert held[0] | held[1] == set(range(8))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@RUNTIMES
def test_stages_of_ranks_count_the_tokens_of_all_experts(build, runtime):
    """Both stages know the counts of the layers of the other."""
    path = build("mixtral")
    with ranks(path, 2, runtime, pipeline_parallel=2, **EXPERTS) as runner:
        runner.run(STEP)
        together = [
            thread.submit(expert_counts.gather_counts, each, each.experts)
            for each, thread in runner.each()
        ]
        assert [one.result() for one in together] == [None] * 4
        experts = [each.experts for each in runner.runners]
    assert experts[0].counts.sum(1).tolist() == [STEP.num_tokens * 2] * checkpoints.LAYERS
    assert all((each.counts == experts[0].counts).all() for each in experts)
    total, peak = experts[0].loads()
    assert total == STEP.num_tokens * 2 * checkpoints.LAYERS
    assert total / 2 <= peak < total


def test_quantised_experts_whose_groups_ranks_would_split_stay_whole(built, tmp_path):
    """Parts of the experts would have 48 inputs, not whole groups of 32."""
    sizes = {"moe_intermediate_size": 96, "intermediate_size": 128}
    path = checkpoints.build("qwen3-moe", built / "to-quantise", **sizes)
    path, _ = quantised(path, tmp_path, CASES["awq"])
    memory = {"kv_cache_dtype": "f32", "kv_cache_memory": 2**20}
    alone = open_runner(path, "openvino", EngineConfig(dtype="f32", **memory))
    expected = alone.run(STEP)
    with ranks(path, 2, "openvino", kv_cache_dtype="f32", **EXPERTS) as runner:
        np.testing.assert_allclose(runner.run(STEP), expected, rtol=1e-3, atol=1e-3)
    problem = "groups of 32 inputs, which do not divide the 48 inputs"
    with pytest.raises(StartError, match=problem), ranks(path, 2, "openvino"):
        pass


# --- options and the file of counts ---------------------------------------------------------------


@pytest.mark.slow
def test_counts_of_a_run_assign_the_experts_of_the_next_start(build, tmp_path, monkeypatch):
    path, file = build("qwen3-moe"), tmp_path / "counts.json"
    options = {"tensor_parallel": 2, "dtype": "f32", "expert_counts": str(file), **EXPERTS}
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with LLM(path, "torch", **options) as llm:
        first = llm.generate([[5, 6, 7]], params)
        stats = llm.stats()
    layers = json.loads(file.read_text())["layers"]
    num_tokens = (3 + 5 - 1) * 3  # of a layer: the last token is not computed
    assert {name: sum(row) for name, row in layers.items()} == {"0": num_tokens, "2": num_tokens}
    assert stats.num_expert_tokens == 2 * num_tokens
    assert num_tokens <= stats.num_expert_tokens_peak <= 2 * num_tokens
    with LLM(path, "torch", **options, expert_replicas=1) as llm:
        assert llm.generate([[5, 6, 7]], params)[0].outputs == first[0].outputs
    again = json.loads(file.read_text())["layers"]
    assert again == {k: [n // 2 + n for n in row] for k, row in layers.items()}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"layers": {"0": [1, 2], "2": [1, 2]}}', "of another model: expected 8 numbers for each"),
        ('{"layers": {"0": [1,2,3,4,5,6,7,8]}}', "of another model"),
        ('{"layers": {"0": [1,2,3,4,5,6,7,8], "2": [1,2,3,4,5,6,7,-8]}}', "not 0 to"),
        ('{"layers": 3', "cannot be read"),
    ],
)
def test_a_file_of_counts_that_does_not_fit_is_refused(tmp_path, content, problem):
    (tmp_path / "counts").write_text(content)
    with pytest.raises(StartError, match=problem):
        expert_counts.read_counts(tmp_path / "counts", [0, 2], 8)


def test_a_new_file_of_counts_is_empty_and_needs_a_directory(tmp_path):
    assert expert_counts.read_counts(tmp_path / "counts", [0, 2], 8) == {}
    with pytest.raises(StartError, match="a new name in a directory that exists"):
        expert_counts.read_counts(tmp_path / "missing" / "counts", [0, 2], 8)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("llama", {"tensor_parallel": 2}, "has no experts: leave it out"),
        ("mixtral", {"tensor_parallel": 1}, "tensor_parallel is 1: set it to the number of ranks"),
        ("mixtral", {"tensor_parallel": 8}, "expected at most 4, the number of the model's expert"),
    ],
)
@RUNTIMES
def test_models_and_numbers_of_ranks_that_experts_do_not_fit_are_refused(
    build, runtime, name, options, problem
):
    with pytest.raises(StartError, match=problem):
        open_runner(build(name), runtime, EngineConfig(**options, **EXPERTS))


def test_options_of_experts_need_each_other():
    with pytest.raises(InvalidInputs, match="expert_counts is 'x', which needs expert_parallel"):
        EngineConfig(expert_counts="x")
    with pytest.raises(InvalidInputs, match="expert_replicas is 2, which needs expert_counts"):
        EngineConfig(expert_parallel=True, tensor_parallel=2, expert_replicas=2)
