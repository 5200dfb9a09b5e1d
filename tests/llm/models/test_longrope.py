"""Longrope: one rotary table for texts up to the original context, another for longer ones.

The reference decides by the length of a text at every token; when it has grown beyond the original
context, it drops its keys and computes all of them again.
"""

import json

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import ranks
from tests.llm.stepping import relative_error, shuffled_tables
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation

pytestmark = pytest.mark.torch
ORIGINAL = 64
RUNTIMES = ["openvino", "torch", pytest.param("mindspore", marks=pytest.mark.mindspore)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "original_max_position_embeddings": ORIGINAL,
}
OPTIONS = {
    "dtype": "f32", "kv_cache_dtype": "f32", "max_model_len": 128, "kv_cache_memory": 2**20,
    "max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def phi(tmp_path_factory):
    directory = checkpoints.build("phi3", tmp_path_factory.mktemp("longrope"))
    config = json.loads((directory / "config.json").read_text())
    changes = {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL}
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


def opened(phi, runtime, **changes):
    if runtime == "mindspore":
        pytest.importorskip("mindspore")
    return open_runner(phi, runtime, EngineConfig(**{**OPTIONS, **changes}))


def answers(runner, prompts, count=24, **options):
    """Greedy ones, all prompts in one engine; an `n` of each is the same."""
    config = EngineConfig(**{**OPTIONS, "block_size": runner.block_size, **options})
    engine = Engine(runner, None, config)
    found = {}
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True, n=2)
    for index, prompt in enumerate(prompts):
        engine.add(f"{index}", prompt, params)
    while engine.has_work:
        for request_id, one in engine.step():
            found.setdefault((int(request_id), one.index), []).extend(one.token_ids)
    pairs = [(found[i, 0], found[i, 1]) for i in range(len(prompts))]
    assert all(first == second for first, second in pairs)
    return [tuple(first) for first, _ in pairs], engine.stats()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_rope_table_is_chosen_by_sequence_length(phi, runtime):
    """Two texts in the same steps, one on each side of the boundary; the long one in pieces."""
    runner = opened(phi, runtime)
    short, long = (checkpoints.prompts(1, longest=length)[0] for length in (ORIGINAL, 66))
    tables = shuffled_tables(runner, 2)
    first = runner.run(
        Step(
            (
                Row(short[:40], 0, tables[0], 40),
                Row(long[:30], 0, tables[1], 30, uses_long_rope=True),
            )
        )
    ).copy()
    second = runner.run(
        Step(
            (
                Row(short[40:], 40, tables[0], 24),
                Row(long[30:], 30, tables[1], 36, uses_long_rope=True),
            )
        )
    )
    found = np.concatenate([first[:40], second[:24]]), np.concatenate([first[40:], second[24:]])
    for logits, text in zip(found, (short, long), strict=True):
        assert relative_error(logits, checkpoints.logits(phi, text)) < 1e-4
    runner.close()


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
def test_stages_choose_the_table_as_a_process_does(phi, runtime):
    prompts = [checkpoints.prompts(1, seed=n, longest=n)[0] for n in (50, 65)]
    with ranks(phi, 2, runtime, by="pipeline_parallel", **OPTIONS) as runner:
        tokens, _ = answers(runner, prompts)
    assert tokens == [generated(phi, prompt, 24) for prompt in prompts]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_sequence_growing_past_the_switch_matches_reference(phi, runtime):
    """From below it, from just below it, from it and from beyond it; MindSpore, which is slow, from
    below and beyond it alone."""
    lengths = (63, 65) if runtime == "mindspore" else (50, 63, 64, 65)
    prompts = [checkpoints.prompts(1, seed=n, longest=n)[0] for n in lengths]
    found, _ = answers(opened(phi, runtime), prompts)
    assert found == [generated(phi, prompt, 24) for prompt in prompts]


def generated(phi, prompt, count):
    model = transformers.AutoModelForCausalLM.from_pretrained(phi, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, use_cache=True
    )
    return tuple(ids[0, len(prompt) :].tolist())


@pytest.mark.parametrize("num_speculative_tokens", [0, 6])
@pytest.mark.parametrize("num_blocks", [200, 60])
def test_long_sequence_does_not_reuse_keys_of_short_rope(num_speculative_tokens, num_blocks):
    """Guesses, forks, shared prompts and preemption, with a toy whose tokens tell tables apart."""
    runner = ToyRunner(num_blocks, 4, rope_switch=ORIGINAL)
    start = list(range(40))
    prompts = [start, [*start, 7], [*range(62)], [*range(64)], [*range(70)], start]
    found, stats = answers(runner, prompts, 40, num_speculative_tokens=num_speculative_tokens)
    assert found == [continued(prompt, 40) for prompt in prompts]
    assert stats.num_free_blocks == num_blocks


def continued(prompt, count):
    """The toy's answer: 7 more for each token of a text beyond the boundary."""
    tokens = list(prompt)
    for _ in range(count):
        extra = 7 if len(tokens) > ORIGINAL else 0
        tokens += continuation([token + extra for token in tokens], 1, 128)
    return tuple(tokens[len(prompt) :])


def test_max_len_within_original_context_needs_single_table(phi):
    assert opened(phi, "openvino").rope_switch == ORIGINAL
    assert opened(phi, "openvino", max_model_len=ORIGINAL).rope_switch == 0


def test_export_to_mindir_is_refused_past_the_switch(phi):
    pytest.importorskip("mindspore")
    from mindspore_serving.llm.runtimes.mindir.export_weights import load_exportable_spec

    with pytest.raises(StartError, match="give max_model_len=64"):
        load_exportable_spec(json.loads((phi / "config.json").read_text()))
