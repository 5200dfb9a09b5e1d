"""Pipeline stages of models whose layers have a state beside keys and values."""

import numpy as np
import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.parallel import ring
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.stages import micro_batches
from mindspore_serving.llm.step import Row, StateSlots, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import ranks

pytestmark = pytest.mark.torch
ROUNDING = 1e-5  # of the largest logit
OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 2**21}


def answers(runner, prompts, count, **options):
    """Greedy ones of an engine, and how many tokens of prompts were in its cache."""
    settings = {**OPTIONS, "block_size": runner.block_size, **options}
    engine = Engine(runner, None, EngineConfig(**settings))
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    tokens = {str(index): [] for index in range(len(prompts))}
    for request_id, prompt in zip(tokens, prompts, strict=True):
        engine.add(request_id, prompt, params)
    while engine.has_work:
        for request_id, generated in engine.step():
            tokens[request_id] += generated.token_ids
    return [tuple(ids) for ids in tokens.values()], engine.stats().num_cache_hits


@pytest.fixture
def small_messages(monkeypatch):
    """Ten hidden states of the model fit a message between stages."""
    monkeypatch.setattr(ring, "PART_BYTES", 4 * 64 * 10)


@pytest.mark.parametrize(
    ("name", "runtime", "drafts"),
    [("lfm2", "openvino", 0), ("qwen3-next", "openvino", 0), ("falcon-h1", "torch", 3)],
)
def test_stages_with_states_answer_as_transformers(tmp_path, small_messages, name, runtime, drafts):
    """Prompts in pieces, shared beginnings, and steps in several messages of ten tokens."""
    directory = checkpoints.build(name, tmp_path)
    common, *others = checkpoints.prompts(4, longest=80)
    prompts = [*others, *((*common, *other) for other in others)]
    speculation = {"num_speculative_tokens": drafts, "min_ngram": 1} if drafts else {}
    options = {**OPTIONS, **speculation} | ({"block_size": 32} if runtime == "torch" else {})
    with ranks(directory, 2, runtime, by="pipeline_parallel", **options) as runner:
        first, _ = answers(runner, prompts, 16, **speculation)
        again, num_cached = answers(runner, [*prompts, *prompts], 16, **speculation)
    for prompt, answer in zip(prompts * 3, [*first, *again], strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    assert num_cached > 64


def test_a_text_that_leaves_no_state_is_embedded_at_once(tmp_path, small_messages):
    directory = checkpoints.build("lfm2", tmp_path)
    prompt = checkpoints.prompts(1, longest=80)[0] * 2
    step = Step((Row(prompt, 0, range(8), 1),))
    config = EngineConfig(dtype="f32", kv_cache_memory=2**21)
    alone = open_runner(directory, "openvino", config)
    with ranks(directory, 2, "openvino", by="pipeline_parallel", **OPTIONS) as runner:
        vectors = runner.embed(step)
    assert len(prompt) > 20
    np.testing.assert_allclose(vectors, alone.embed(step), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (StateSlots(1, 2), [StateSlots(1, 2), StateSlots(2, 2), StateSlots(2, 2)]),
        (StateSlots(-1, 2, 3, 2), [StateSlots(-1, 2, 3, 2), StateSlots(2, 2), StateSlots(2, 2)]),
        (StateSlots(3, 2, 3, 4), [StateSlots(3, 3), StateSlots(3, 2), StateSlots(2, 2)]),
        (StateSlots(1, 2, 3, 6), [StateSlots(1, 3), StateSlots(3, 2, 3, 2), StateSlots(2, 2)]),
        (StateSlots(1, 2, 3, 9), [StateSlots(1, 3), StateSlots(3, 3), StateSlots(3, 2, 3, 1)]),
    ],
)
def test_the_state_of_a_row_goes_on_from_part_to_part(state, expected):
    row = Row(tuple(range(10)), 0 if state.read < 0 else 7, (5, 6), 1, state=state)
    parts = [part.rows[0] for part in micro_batches(Step((row,)), 4)]
    assert [part.state for part in parts] == expected
    assert [len(part.tokens) for part in parts] == [4, 4, 2]
