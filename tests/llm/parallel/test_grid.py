"""A model of which each stage is cut over ranks: tokens of one process, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams, runtimes
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import exchange, ring
from mindspore_serving.llm.parallel.group import open_grid
from mindspore_serving.llm.runtimes import open_runner, stages
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import links, ranks
from tests.llm.running import check, generate, generate_staggered, texts

pytestmark = pytest.mark.torch
COUNT = 9  # more than a block of torch
RUNTIMES = pytest.mark.parametrize("runtime", ["torch", "openvino"])
BOTH = {"pipeline_parallel": 2}  # beside two ranks of each stage


def test_each_rank_is_in_a_group_of_its_stage_and_a_group_over_stages():
    config = EngineConfig(tensor_parallel=2, pipeline_parallel=3)
    with links(6) as own:
        found = [open_grid(one, config) for one in own]
    assert [list(grid.everyone.members) for grid in found] == [[0, 1, 2, 3, 4, 5]] * 6
    peers, columns = [[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]]
    assert [list(grid.peers.members) for grid in found] == [peers[n // 2] for n in range(6)]
    assert [list(grid.stages.members) for grid in found] == [columns[n % 2] for n in range(6)]


@pytest.fixture(scope="module", params=["llama3-tied", "gemma3", "mixtral", "gemma4"])
def each(built, request):
    return checkpoints.build(request.param, built)


@RUNTIMES
def test_two_stages_of_two_ranks_generate_the_tokens_of_the_reference(each, runtime):
    path, prompts = each, [(5,), *checkpoints.prompts(2)]
    with ranks(path, 2, runtime, **BOTH) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=7)
    check(path, prompts, answers)


@RUNTIMES
def test_stages_of_ranks_that_overlap_do_so_too(llama, runtime, monkeypatch):
    """Three stages, with many pieces in flight."""
    monkeypatch.setattr(runtimes, "has_dedicated_cores", lambda *_: True)
    monkeypatch.setattr(stages, "MIN_MICRO_BATCH", 1)
    monkeypatch.setattr(stages, "MAX_MICRO_BATCH", 3)
    prompts = checkpoints.prompts(4)
    with ranks(llama, 2, runtime, pipeline_parallel=3) as runner:
        answers = generate(runner, texts(runner, prompts, COUNT), COUNT)
    check(llama, prompts, answers)


@RUNTIMES
def test_logits_and_vectors_are_those_of_a_process_within_rounding(llama, runtime, monkeypatch):
    """Also where one array of the shared memory cannot hold them."""
    for module in (ring, exchange):
        monkeypatch.setattr(module, "PART_BYTES", 2000)
    step = Step((Row(checkpoints.prompts(1)[0][:9], 0, [3, 1], 9),))
    alone = open_runner(llama, runtime, EngineConfig(dtype="f32", kv_cache_memory=2**20))
    with ranks(llama, 2, runtime, block_size=32, **BOTH) as runner:
        for way in ("run", "embed"):
            found, expected = (getattr(one, way)(step) for one in (runner, alone))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_cache_memory_is_that_of_all_ranks_of_all_stages(built):
    path = checkpoints.build("llama-deep", built / "deep")  # four layers, which two stages divide
    config = EngineConfig(device="cpu", block_size=8, kv_cache_memory=2**20)
    with ranks(path, 2, kv_cache_memory=2**20, **BOTH) as runner:
        assert runner.num_blocks == open_runner(path, "torch", config).num_blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param("torch", marks=pytest.mark.long),  # its processes: test_tokens, test_stages
        "openvino",
    ],
)
def test_processes_answer_a_crowd_as_the_reference_does(llama, runtime):
    """With pieces of prompts, shared prefixes and speculation."""
    common = checkpoints.prompts(1, seed=1, longest=60)[0] * 3
    prompts = [list(common[:70] + tail) for tail in checkpoints.prompts(4, seed=2, longest=60)]
    options = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "kv_cache_memory": 8 << 20}
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(
        llama, runtime, tensor_parallel=2, dtype="f32", num_threads=2, **BOTH, **options
    ) as llm:
        answers = llm.generate(prompts, params)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.outputs[0].token_ids == checkpoints.greedy(llama, tuple(prompt), 20)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tensor_parallel": 3}, "divisor of the model's 4 attention heads"),
        ({"pipeline_parallel": 4}, "pipeline_parallel is 4, expected at most 3"),
        ({"max_loras": 1}, "tensor_parallel is 2 and pipeline_parallel is 2, but LoRA adapters"),
    ],
)
def test_options_that_stages_of_ranks_do_not_support_raise_an_error(llama, options, problem):
    with pytest.raises(StartError, match=problem):
        LLM(llama, "torch", **{"tensor_parallel": 2, **BOTH, **options})


def test_more_ranks_than_there_may_be_are_refused():
    with pytest.raises(InvalidInputs, match="is 16 and .* 5, expected at most 64 ranks together"):
        EngineConfig(tensor_parallel=16, pipeline_parallel=5)
