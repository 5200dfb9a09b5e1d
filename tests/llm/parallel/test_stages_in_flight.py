"""Steps of several groups of sequences in flight at once: the answers of one process."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm import LLM, runtimes
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.parallel import ring
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints
from tests.llm.rank_threads import ranks

pytestmark = pytest.mark.torch
OPTIONS = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_speculative_tokens": 0}
RUNTIMES = pytest.mark.parametrize("runtime", ["torch", "openvino"])


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Cores for all stages."""
    monkeypatch.setattr(runtimes, "has_dedicated_cores", lambda *_: True)


def answers(runner, prompts, *, num_groups=None, seeds=(), aborted=(), **options):
    """Answers by prompt, those with a seed sampled, and how many steps there were in flight.

    Prompts `aborted` are so after the first tokens of the first prompt.
    """
    stages = {"pipeline_parallel": 3, "pipeline_groups": num_groups} if num_groups else {}
    config = EngineConfig(**{**OPTIONS, **stages, **options}, block_size=runner.block_size)
    engine = Engine(runner, None, config)
    for index, prompt in enumerate(prompts):
        sampled = {"seed": index, "temperature": 1.0} if index in seeds else {"temperature": 0.0}
        params = SamplingParams(max_tokens=9 + index, ignore_eos=True, **sampled)
        engine.add(str(index), prompt, params)
    tokens, ends, in_flight = {str(index): () for index in range(len(prompts))}, {}, set()
    while engine.has_work:
        for request_id, generated in engine.step():
            tokens[request_id] += generated.token_ids
            ends[request_id] = generated.finish_reason
        in_flight.add(len(engine._steps) + 1)
        if len(tokens["0"]) == 4:
            for index in aborted:
                engine.abort(str(index))
    expected = {FinishReason.ABORT if index in aborted else FinishReason.LENGTH for index in (1, 2)}
    assert {ends["1"], ends["2"]} == expected
    assert engine.stats().num_free_blocks == engine.num_blocks
    return list(tokens.values()), max(in_flight)


@RUNTIMES
@pytest.mark.parametrize(("num_stages", "num_groups"), [(2, 2), (3, 4)])
def test_groups_are_answered_as_by_a_single_process(llama, runtime, num_stages, num_groups):
    """Also sampled ones; logits of a step come in several arrays."""
    prompts = checkpoints.prompts(7, longest=30)
    config = EngineConfig(dtype="f32", kv_cache_dtype="f32", kv_cache_memory=2**20)
    alone = open_runner(llama, runtime, config)
    expected, _ = answers(alone, prompts, seeds=(3, 4))
    cut = {"kv_cache_dtype": "f32", "block_size": alone.block_size, "by": "pipeline_parallel"}
    with ranks(llama, num_stages, runtime, **cut) as runner:
        divided, num_in_flight = answers(runner, prompts, num_groups=num_groups, seeds=(3, 4))
    assert divided == expected
    assert num_in_flight == num_groups
    for index in (0, 1, 2, 5, 6):
        greedy = checkpoints.likeliest(llama, prompts[index], divided[index])
        assert divided[index] == greedy


def test_logits_in_many_arrays_do_not_block_stages(llama, monkeypatch):
    monkeypatch.setattr(ring, "PART_BYTES", 4 * 256)  # a row of logits, four hidden states
    prompts = checkpoints.prompts(8, longest=30)
    with ranks(llama, 2, by="pipeline_parallel") as runner:
        divided, num_in_flight = answers(runner, prompts, num_groups=3)
    assert num_in_flight == 3
    for prompt, answer in zip(prompts, divided, strict=True):
        assert answer == checkpoints.likeliest(llama, prompt, answer)


def test_requests_that_are_aborted_in_flight_disturb_no_other_request(llama):
    """Drafts beside them, in a cache that is too small for all."""
    prompts = checkpoints.prompts(7, longest=30)
    options = {"num_speculative_tokens": 3, "adaptive_speculation": False, "min_ngram": 1}
    with ranks(llama, 2, by="pipeline_parallel", kv_cache_memory=160 << 10) as runner:
        divided, _ = answers(runner, prompts, num_groups=2, aborted=(1, 2), **options)
    for index in (0, 3, 4, 5, 6):
        assert divided[index] == checkpoints.likeliest(llama, prompts[index], divided[index])


def test_groups_of_a_model_with_states_are_answered_as_by_transformers(tmp_path):
    directory = checkpoints.build("lfm2", tmp_path)
    common, *prompts = checkpoints.prompts(6, longest=40)
    prompts += [(*common, *prompt) for prompt in prompts[:3]]
    options = {"kv_cache_memory": 2**21, "max_num_seqs": 8, "by": "pipeline_parallel"}
    with ranks(directory, 2, "openvino", **options) as runner:
        divided, num_in_flight = answers(runner, prompts, num_groups=2)
    assert num_in_flight == 2
    for prompt, answer in zip(prompts, divided, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < 1e-5


@pytest.mark.slow
def test_texts_that_are_embedded_between_steps_find_none_in_flight(llama):
    """As after an interrupted call; each stage has a thread."""
    prompts = checkpoints.prompts(4, longest=30)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    stages = {"pipeline_parallel": 2, "pipeline_groups": 2, "num_threads": 1}
    with LLM(llama, "torch", dtype="f32", kv_cache_memory=4 << 20, **stages, **OPTIONS) as llm:
        engine, tokens = llm._engine, {str(index): () for index in range(4)}
        for name, prompt in zip(tokens, prompts, strict=True):
            engine.add(name, prompt, params)
        early = []
        while engine.has_work:
            for name, generated in engine.step():
                tokens[name] += generated.token_ids
            if len(tokens["3"]) == 4:
                early.append(llm.embed([list(prompts[0])]))
        late = llm.embed([list(prompts[0])])
    for prompt, answer in zip(prompts, tokens.values(), strict=True):
        assert answer == checkpoints.likeliest(llama, prompt, answer)
    assert early
    for vectors in early:
        np.testing.assert_allclose(vectors, late, rtol=1e-4, atol=1e-4)


def test_groups_are_refused_without_stages(llama):
    with pytest.raises(InvalidInputs, match="pipeline_groups is 2, but pipeline_parallel is 1"):
        LLM(llama, "torch", pipeline_groups=2)
