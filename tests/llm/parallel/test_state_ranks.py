"""Ranks and stages of models whose layers have a state beside keys and values."""

from dataclasses import replace

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
from tests.llm.gguf_converted import write_converted
from tests.llm.lora_files import adapter, merged, write
from tests.llm.rank_threads import ranks

pytestmark = pytest.mark.torch
COUNT = 9
CUT = [
    "qwen3-next", "qwen3_5", "qwen3_5-moe", "bamba", "falcon-h1", "granite4-mamba", "nemotron-h",
    "nemotron-h-moe", "mamba2", "lfm2-biased", "lfm2-moe",
]  # fmt: skip
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
    check(checkpoints.build(name, tmp_path), runtime, drafts, pipeline_parallel=2)


@pytest.mark.parametrize(
    ("name", "runtime", "drafts", "division"),
    [
        ("qwen3-next", "openvino", 0, {"tensor_parallel": 2}),
        ("nemotron-h", "openvino", 3, {"tensor_parallel": 4}),
        ("lfm2", "torch", 0, {"tensor_parallel": 4}),
        ("falcon-h1", "torch", 3, {"tensor_parallel": 2, "pipeline_parallel": 2}),
    ],
)
def test_ranks_with_states_share_beginnings_of_prompts(tmp_path, name, runtime, drafts, division):
    check(checkpoints.build(name, tmp_path), runtime, drafts, **division)


def check(directory, runtime, drafts, **division):
    """Compare prompts in pieces, shared beginnings, and steps in several messages of ten tokens."""
    common, *others = checkpoints.prompts(4, longest=80)
    prompts = [*others, *((*common, *other) for other in others)]
    speculation = {"num_speculative_tokens": drafts, "min_ngram": 1} if drafts else {}
    options = {**OPTIONS, **speculation} | ({"block_size": 32} if runtime == "torch" else {})
    with ranks(directory, 1, runtime, **options, **division) as runner:
        first, _ = answers(runner, prompts, 16, **speculation)
        again, num_cached = answers(runner, [*prompts, *prompts], 16, **speculation)
    for prompt, answer in zip(prompts * 3, [*first, *again], strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    assert num_cached > 64


@pytest.mark.parametrize(
    ("name", "runtime", "size"),
    [
        *((name, "torch", 2) for name in CUT),
        ("qwen3_5", "openvino", 2),
        ("granite4-mamba", "openvino", 2),
        ("falcon-h1-normed", "openvino", 4),  # two groups of results, over two ranks each
        ("bamba", "torch", 4),
        ("mamba2", "torch", 8),
    ],
)
def test_ranks_that_divide_states_answer_as_transformers(tmp_path, name, runtime, size):
    directory, prompts = checkpoints.build(name, tmp_path), checkpoints.prompts(3)
    with ranks(directory, size, runtime, **OPTIONS) as runner:
        tokens, _ = answers(runner, prompts, COUNT)
    for prompt, answer in zip(prompts, tokens, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING


def test_ranks_divide_states_of_a_gguf_file_whose_heads_are_interleaved(tmp_path):
    directory, prompts = checkpoints.build("gguf-qwen35", tmp_path), checkpoints.prompts(2)
    path = write_converted(directory, "qwen35", tmp_path / "model.gguf")
    with ranks(path, 2, **OPTIONS) as runner:
        tokens, _ = answers(runner, prompts, COUNT)
    for prompt, answer in zip(prompts, tokens, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING


def test_ranks_have_their_part_of_an_adapter_of_states(tmp_path):
    directory = checkpoints.build("falcon-h1", tmp_path)
    tensors = adapter(directory, ("mamba.in_proj", "mamba.out_proj"), seed=1)
    adapters = {"added": str(write(tmp_path / "adapter", tensors))}
    expected = open_runner(
        merged(directory, tensors, tmp_path / "merged"), "openvino",
        EngineConfig(dtype="f32", kv_cache_memory=2**21),
    )  # fmt: skip
    row = Row(checkpoints.prompts(1)[0], 0, range(8), 4, state=StateSlots(-1, 0))
    with ranks(directory, 2, "openvino", adapters=adapters, **OPTIONS) as runner:
        logits = runner.run(Step((replace(row, adapter=1),)))
    np.testing.assert_allclose(logits, expected.run(Step((row,))), rtol=1e-4, atol=1e-4)


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
