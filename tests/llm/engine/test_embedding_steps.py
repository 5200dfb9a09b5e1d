"""Prompts to embed beside sequences that decode: one forward pass of each kind in a step."""

import numpy as np
import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation

BUDGET = 16
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Embedding(ToyRunner):
    """A toy whose hidden state is one-hot at the next token; counts its forward passes."""

    hidden_size = 128

    def __init__(self, **options):
        super().__init__(**options)
        self.passes = []  # tokens of each

    def run(self, step):
        self.passes.append(step.num_tokens)
        return super().run(step)

    def embed(self, step):
        return np.exp2(self.run(step) * 64)  # all but the likeliest vanish


def make(**options):
    runner = Embedding(**options)
    config = EngineConfig(max_num_batched_tokens=BUDGET, max_num_seqs=4, block_size=4)
    return runner, Engine(runner, None, config)


def step(engine, runner):
    """Outputs of a step by request, and its passes."""
    runner.passes.clear()
    outputs = {}
    for request_id, output in engine.step():
        outputs.setdefault(request_id, []).append(output)
    return outputs, list(runner.passes)


def one_hot(prompt):
    return continuation(prompt, 1, 128)[0]


def test_a_long_prompt_is_embedded_in_chunks_beside_decoding():
    runner, engine = make()
    engine.add("decodes", [1, 2, 3], SamplingParams(max_tokens=30, **GREEDY))
    step(engine, runner)
    prompt = [5 + number % 90 for number in range(200)]
    engine.add_embedding("long", prompt)
    pieces = []
    tokens = []
    while "long" not in (found := step(engine, runner))[0]:
        outputs, passes = found
        pieces.append(passes)
        tokens += [one.token_ids[0] for one in outputs["decodes"]]
    assert pieces == [[BUDGET, 1]] * (len(prompt) // BUDGET)
    assert tokens == continuation([1, 2, 3], 1 + len(tokens), 128)[1:]
    (vector,) = found[0]["long"]
    assert vector.argmax() == one_hot(prompt)
    assert np.linalg.norm(vector) == pytest.approx(1.0)


def test_short_prompts_are_embedded_together_behind_a_long_prompt():
    runner, engine = make()
    prompts = {"long": [7] * 40, "a": [3, 4], "b": [9] * 5, "c": [1] * 12}
    for name, prompt in prompts.items():
        engine.add_embedding(name, prompt)
    found, order = {}, []
    while engine.has_work:
        outputs, passes = step(engine, runner)
        found.update(outputs)
        order.append((sorted(outputs), passes))
    assert order == [
        ([], [16]),
        ([], [16]),
        (["long"], [8]),
        (["a", "b"], [7]),
        (["c"], [12]),
    ]
    assert {name: vector.argmax() for name, (vector,) in found.items()} == {
        name: one_hot(prompt) for name, prompt in prompts.items()
    }
    assert engine.stats().num_free_blocks == runner.num_blocks


def test_an_aborted_long_prompt_gives_its_blocks_back_between_two_pieces():
    runner, engine = make()
    engine.add_embedding("long", [7] * 40)
    engine.add_embedding("next", [3, 4])
    step(engine, runner)
    assert engine.stats().num_free_blocks < runner.num_blocks
    assert engine.abort("long")
    assert not engine.abort("long")
    assert engine.stats().num_free_blocks == runner.num_blocks
    outputs, passes = step(engine, runner)
    assert (list(outputs), passes) == (["next"], [2])
    assert not engine.has_work


def test_a_long_prompt_whose_piece_fails_ends_alone(monkeypatch):
    runner, engine = make()
    engine.add("decodes", [1, 2, 3], SamplingParams(max_tokens=3, **GREEDY))
    engine.add_embedding("long", [7] * 40)
    run = Embedding.run

    def failing(self, step):
        if 7 in step.rows[0].tokens:
            raise MemoryError("injected")
        return run(self, step)

    monkeypatch.setattr(Embedding, "run", failing)
    outputs, _ = step(engine, runner)
    (failure,) = outputs["long"]
    assert isinstance(failure, ServingError)
    assert "decodes" in outputs
    while engine.has_work:
        step(engine, runner)
    assert engine.stats().num_free_blocks == runner.num_blocks


def test_a_long_prompt_waits_until_its_blocks_are_free_and_is_then_next():
    runner, engine = make(num_blocks=12)
    engine.add("decodes", [1] * 14, SamplingParams(max_tokens=8, **GREEDY))
    step(engine, runner)
    engine.add_embedding("long", [7] * 40)  # ten of twelve blocks
    engine.add("behind", [2] * 14, SamplingParams(max_tokens=8, **GREEDY))
    ended = []
    while engine.has_work:
        outputs, _ = step(engine, runner)
        ended += [
            name
            for name, found in outputs.items()
            if name == "long" or found[-1].finish_reason is not None
        ]
    assert ended == ["decodes", "long", "behind"]
