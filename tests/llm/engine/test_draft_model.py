"""A draft model's guesses change how many steps an answer takes and nothing else.

The toy's tokens depend on its whole cache: as its own draft, it guesses wrong where a block, a
position or a token of the draft's cache is wrong.
"""

from collections import defaultdict

import numpy as np
import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from tests.llm.toy import ToyRunner

SIZE = 4  # tokens of a block


class Clock:
    def __init__(self):
        self.now = 0.0


class Timed(ToyRunner):
    """A step takes `seconds` for its first row, and a tenth of it for each other.  What it says is
    the toy's or, where `says` is given, that of the token before."""

    def __init__(self, clock, seconds=1.0, says=None):
        super().__init__(1024, SIZE, max_model_len=2048)
        self.clock, self.seconds, self.says = clock, seconds, says
        self.steps = []

    def run(self, step):
        self.steps.append(step)
        self.clock.now += self.seconds * (0.9 + 0.1 * step.num_tokens)
        return super().run(step)

    def _likeliest(self, row):
        if self.says is None:
            return super()._likeliest(row)
        return [self.says(token) for token in row.tokens[len(row.tokens) - row.num_logits :]]


def make(draft=None, runner=None, clock=None, **options):
    """Without a clock of its own, every guess is made."""
    config = {"block_size": SIZE, "max_num_seqs": 8, "num_speculative_tokens": 4, **options}
    config.setdefault("adaptive_speculation", clock is not None)
    config.setdefault("min_ngram", 32)  # hardly any guesses from text
    runner = runner or ToyRunner(256, SIZE)
    clock = clock or Clock()
    return Engine(runner, None, EngineConfig(**config), draft=draft, clock=lambda: clock.now)


def params(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **options})


def run(engine):
    said = defaultdict(list)
    while engine.has_work:
        for request_id, generated in engine.step():
            said[request_id, generated.index] += generated.token_ids
    return dict(said)


def answers(engine, prompts, **options):
    for place, prompt in enumerate(prompts):
        engine.add(str(place), prompt, params(**options))
    return run(engine)


PROMPTS = [[5], [1, 2, 3], list(range(50)), list(range(60)), [9] * 17]


@pytest.mark.parametrize("options", [
    {}, {"max_num_batched_tokens": 16}, {"block_size": SIZE, "max_num_seqs": 2},
    {"enable_prefix_caching": False}, {"num_speculative_tokens": 1},
])  # fmt: skip
def test_a_model_that_is_its_own_draft_is_always_right(options):
    expected = answers(make(), PROMPTS)
    engine = make(ToyRunner(256, SIZE), **options)
    assert answers(engine, PROMPTS) == expected
    stats = engine.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100


@pytest.mark.parametrize("options", [
    {"temperature": 0.9, "top_k": 6, "seed": 3}, {"n": 3, "temperature": 0.8, "seed": 1},
    {"temperature": 0.7, "seed": 2, "repetition_penalty": 1.2, "logprobs": 2},
])  # fmt: skip
def test_sampled_answers_are_the_same_with_a_draft_model(options):
    expected = answers(make(), PROMPTS, **options)
    engine = make(ToyRunner(256, SIZE))
    assert answers(engine, PROMPTS, **options) == expected
    stats = engine.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_an_answer_with_an_adapter_is_the_same_though_the_draft_has_none():
    engines = make(), make(ToyRunner(256, SIZE))
    for engine in engines:
        engine.add("a", [1, 2, 3], params(), adapter=2)
        engine.add("b", [1, 2, 3], params())
    assert run(engines[0]) == run(engines[1])
    assert engines[1].stats().num_accepted_tokens > 40


def test_the_draft_model_computes_all_sequences_in_each_pass():
    draft = Timed(Clock())
    engine = make(draft)
    answers(engine, [[1], [2], [3]], max_tokens=21)
    assert {len(step.rows) for step in draft.steps} == {3}
    assert len(draft.steps) == 16, "4 steps of the large model with 4 guesses each"


def test_a_long_prompt_is_computed_in_chunks_beside_decoding():
    draft = Timed(Clock())
    engine = make(draft, runner=ToyRunner(256, SIZE), max_num_batched_tokens=16)
    engine.add("short", [1, 2], params(max_tokens=80))
    engine.add("long", list(range(100)), params(max_tokens=40))
    run(engine)
    assert max(step.num_tokens for step in draft.steps) <= 16
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 60


def test_a_prompt_that_begins_like_another_is_not_read_again():
    draft = Timed(Clock())
    engine = make(draft)
    answers(engine, [list(range(64))])
    draft.steps.clear()
    answers(engine, [[*range(64), 7]])
    assert draft.steps[0].num_tokens < SIZE + 2


def test_blocks_of_answers_that_ended_are_free_again():
    engine = make(ToyRunner(64, SIZE))
    pool = engine._speculation._model._pool
    answers(engine, PROMPTS)
    engine.add("aborted", [1, 2, 3], params())
    for _ in range(4):
        engine.step()
    assert pool.num_free < 64
    engine.abort("aborted")
    answers(engine, [[1]], max_tokens=1)
    engine.add("last", [1], params(max_tokens=3))
    engine.step()
    engine.step()
    assert pool.num_free >= 62


@pytest.mark.parametrize(("own", "drafts"), [(48, 24), (28, 256), (256, 1)])
def test_too_few_blocks_cost_guesses_and_nothing_else(own, drafts):
    """Of the model, so that sequences are preempted, or of its draft."""
    prompts = [[place] * (4 + place) for place in range(8)]
    expected = answers(make(), prompts)
    engine = make(ToyRunner(drafts, SIZE), runner=ToyRunner(own, SIZE))
    assert answers(engine, prompts) == expected
    stats = engine.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert (stats.num_draft_tokens > 0) is (drafts > 1)


def test_a_draft_model_with_a_shorter_context_drafts_up_to_its_end():
    expected = answers(make(), [[1, 2, 3]], max_tokens=100)
    engine = make(ToyRunner(64, SIZE, max_model_len=40))
    assert answers(engine, [[1, 2, 3]], max_tokens=100) == expected
    assert 20 < engine.stats().num_draft_tokens < 40


def test_a_draft_that_has_fewer_or_more_tokens_guesses_those_of_both():
    for size in (100, 160):
        expected = answers(make(), PROMPTS)
        engine = make(ToyRunner(256, SIZE, size))
        assert answers(engine, PROMPTS) == expected


def test_a_draft_that_fails_is_not_asked_again(caplog):
    class Failing(Timed):
        def run(self, step):
            if len(self.steps) == 5:
                raise RuntimeError("no memory")
            return super().run(step)

    draft = Failing(Clock())
    engine = make(draft)
    assert answers(engine, PROMPTS) == answers(make(), PROMPTS)
    assert len(draft.steps) == 5


def test_both_models_are_closed():
    closed = []

    class Closing(ToyRunner):
        def close(self):
            closed.append(self)

    runner, draft = Closing(), Closing()
    make(draft, runner).close()
    assert set(closed) == {runner, draft}


def rounds(token):
    return token % 100 + 1


def seconds(draft_seconds, says, *, requests=3, streams=2):
    """Of answers with a draft, over those without."""
    found = []
    for has_draft in (True, False):
        clock = Clock()
        draft = Timed(clock, draft_seconds, says) if has_draft else None
        engine = make(draft, Timed(clock, says=rounds), clock, enable_prefix_caching=False)
        for _ in range(requests):
            answers(engine, [[place] for place in range(streams)], max_tokens=90)
        found.append(clock.now)
    return found[0] / found[1]


def test_a_good_and_quick_draft_pays():
    assert seconds(0.05, rounds) < 0.6


def test_a_good_draft_that_is_as_slow_as_the_model_is_given_up():
    assert seconds(1.0, rounds, requests=20) < 1.03


@pytest.mark.parametrize("cost", [0.05, 0.3, 1.0])
def test_a_bad_draft_is_given_up(cost):
    assert seconds(cost, lambda token: 0, requests=20) < 1.03


def test_a_draft_that_was_given_up_is_tried_again_now_and_then():
    clock, bad = Clock(), [True]
    draft = Timed(clock, 0.05, lambda token: 0 if bad[0] else rounds(token))
    engine = make(draft, Timed(clock, says=rounds), clock, enable_prefix_caching=False)
    for _ in range(5):
        answers(engine, [[1]], max_tokens=90)
    before = engine.stats().num_accepted_tokens
    bad[0] = False
    for _ in range(30):
        answers(engine, [[1]], max_tokens=90)
    assert engine.stats().num_accepted_tokens > before + 300


def test_guesses_from_text_are_taken_where_they_are_likelier():
    """The draft model is right in half of the places, the text always."""
    clock = Clock()
    draft = Timed(clock, 0.1, lambda token: rounds(token) if token % 2 else 0)
    engine = make(draft, Timed(clock, says=lambda token: token % 9 + 1), clock, min_ngram=3)
    answers(engine, [[1, 2, 3]], max_tokens=400)
    assert engine.stats().num_steps < 120
    assert len(draft.steps) < 40


def test_a_draft_model_computes_each_token_once():
    """Apart from the last token, of which the guesses are wanted."""
    draft = Timed(Clock())
    engine = make(draft, enable_prefix_caching=False)
    answers(engine, [list(range(40))], max_tokens=40)
    seen = np.concatenate([np.arange(row.start, row.start + len(row.tokens))
                           for step in draft.steps for row in step.rows])  # fmt: skip
    assert np.bincount(seen).max() <= 2
    assert len(seen) < 40 + 40 + 10
