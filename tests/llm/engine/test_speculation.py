"""Guesses change how many steps an answer takes and nothing else, and are made when it pays."""

from collections import defaultdict

import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine import suffix_drafter
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.suffix_drafter import RecentAnswers
from tests.llm.toy import ToyRunner


class Rounds(ToyRunner):
    """Goes on with 1, 2, ... `length`, 1, 2, ... whatever came before.  A step takes a second for
    its first row, and `row_cost` for each other."""

    def __init__(self, length=9, row_cost=0.1):
        super().__init__(256, 4)
        self.length, self.row_cost, self.now = length, row_cost, 0.0
        self.num_rows = []

    def run(self, step):
        self.num_rows.append(step.num_tokens)
        self.now += 1 + self.row_cost * (step.num_tokens - 1)
        return super().run(step)

    def _likeliest(self, row):
        last = row.tokens[len(row.tokens) - row.num_logits :]
        return [token % self.length + 1 for token in last]


def make(runner=None, **options):
    runner = runner or ToyRunner(256, 4)
    config = EngineConfig(**{"block_size": 4, "max_num_seqs": 8, **options})
    return Engine(runner, None, config, clock=lambda: getattr(runner, "now", 0.0))


def params(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **options})


def run(engine):
    """Steps to the end: tokens, log-probabilities and the last output, by request and index."""
    said, logprobs, last = defaultdict(list), defaultdict(list), {}
    while engine.has_work:
        for request_id, generated in engine.step():
            key = request_id, generated.index
            said[key] += generated.token_ids
            logprobs[key] += generated.logprobs or ()
            last[key] = generated
    return said, logprobs, last


def steps(engine, prompt, salt="", **options):
    """How many an answer takes."""
    before = engine.stats().num_steps
    engine.add("a", prompt, params(**options), cache_salt=salt)
    run(engine)
    return engine.stats().num_steps - before


def test_by_default_a_repetitive_text_takes_few_steps():
    assert steps(make(Rounds(9)), [1, 2, 3]) < 20
    engine = make(Rounds(100))
    assert steps(engine, [1, 2, 3]) == 60
    assert engine.stats().num_draft_tokens == 0


def test_no_more_guesses_are_made_than_is_allowed():
    runner = Rounds(row_cost=0.01)
    steps(make(runner, num_speculative_tokens=3), [1, 2, 3], max_tokens=100)
    assert max(runner.num_rows[1:]) == 4
    engine = make(Rounds(), num_speculative_tokens=0)
    assert steps(engine, [1, 2, 3]) == 60


def test_guesses_that_cost_more_than_they_gain_are_given_up():
    """What a row costs is not known at first."""
    runner = Rounds(row_cost=1.5)
    engine = make(runner)
    steps(engine, [1, 2, 3], max_tokens=240)
    before = runner.now
    steps(engine, [1, 2, 3], max_tokens=240)
    without = 3.2 + 239  # the prompt's step, and one for each token after the first
    assert runner.now - before < 1.1 * without
    assert runner.num_rows.count(1) > 100


def test_unlikely_guesses_are_made_where_that_is_asked_for_alone():
    """One token is the same, and what follows never is."""

    class Never(Rounds):
        def _likeliest(self, row):
            places = range(row.start + len(row.tokens) - row.num_logits + 1, 1000)
            return [1 if at % 2 else 3 + at // 2 for at in places[: row.num_logits]]

    for is_adaptive in (True, False):
        engine = make(Never(), adaptive_speculation=is_adaptive)
        assert steps(engine, [1, 2, 1]) == 60
        assert (engine.stats().num_draft_tokens > 100) != is_adaptive


def test_a_sequence_with_rejected_drafts_leaves_its_rows_to_the_rest():
    """One repeats; the other looks as if it did, and never does."""

    class Mixed(Rounds):
        def _likeliest(self, row):
            if row.adapter == 0:
                return super()._likeliest(row)
            places = range(row.start + len(row.tokens) - row.num_logits + 1, 1000)
            return [
                50 + place // 4 % 70 if place % 4 == 0 else place % 4
                for place, _ in zip(places, range(row.num_logits), strict=False)
            ]

    runner = Mixed()
    runner.adapters = range(1, 2)
    engine = make(runner)
    engine.add("repeats", [1, 2, 3], params(max_tokens=100))
    engine.add("does not", [1, 2, 3], params(max_tokens=100), adapter=1)
    _, _, last = run(engine)
    repeats, other = last["repeats", 0], last["does not", 0]
    assert repeats.num_accepted_tokens > 70
    assert other.num_draft_tokens - other.num_accepted_tokens < 40


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 4, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
        {"temperature": 0.9, "logit_bias": {3: 2.0}, "min_tokens": 20, "stop_token_ids": [5]},
        {"temperature": 0.8, "n": 3, "logprobs": 2},
    ],
)
@pytest.mark.parametrize("runner", [Rounds, lambda: ToyRunner(256, 4)])
def test_an_answer_is_the_same_with_guesses_and_without(runner, options):
    """Sampled ones as well: a token depends on its logits, seed and place, guessed or not."""
    plain = make(runner(), num_speculative_tokens=0)
    guessing = make(
        runner(), num_speculative_tokens=5, adaptive_speculation=False, min_ngram=1, max_ngram=2
    )
    for engine in (plain, guessing):
        for seed in range(4):
            engine.add(str(seed), [1, 2, 3, 1], params(seed=seed, **options))
    (expected, logprobs, _), (said, others, _) = run(plain), run(guessing)
    assert said == expected
    assert others == logprobs
    assert guessing.stats().num_draft_tokens > 0


def test_an_answer_counts_its_guesses():
    engine = make(Rounds())
    engine.add("a", [1, 2, 3], params())
    _, _, last = run(engine)
    stats, ended = engine.stats(), last["a", 0]
    assert (ended.num_draft_tokens, ended.num_accepted_tokens) == (
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    )
    assert 60 - stats.num_steps <= ended.num_accepted_tokens <= ended.num_draft_tokens


def test_an_answer_is_drafted_from_a_recent_answer():
    engine = make(Rounds(100))
    assert steps(engine, [1, 2, 3]) == 60
    assert steps(engine, [1, 2, 3]) < 20


def test_recent_answers_are_shared_only_within_a_scope():
    engine = make(Rounds(100))
    assert steps(engine, [1, 2, 3], salt="one") == 60
    assert steps(engine, [1, 2, 3], salt="two") == 60
    assert steps(engine, [1, 2, 3]) == 60
    alone = make(Rounds(100), enable_prefix_caching=False)
    assert [steps(alone, [1, 2, 3]) for _ in range(2)] == [60, 60]


def test_recent_answers_take_a_bounded_number_of_tokens(monkeypatch):
    monkeypatch.setattr(suffix_drafter, "MAX_SHARED_TOKENS", 100)
    monkeypatch.setattr(suffix_drafter, "MAX_SCOPES", 2)
    recent = RecentAnswers(EngineConfig())
    for number in range(50):
        recent.add(("", 0), [number] * 30)
        assert sum(len(index.tokens) for index in recent.of(("", 0))) <= 202
    assert recent.of(("", 0))[0].find([49] * 5)[0] == 5
    assert all(index.find([0] * 5) == (0, []) for index in recent.of(("", 0)))
    recent.add(("", 1), [7] * 300)
    assert len(recent.of(("", 1))[0].tokens) == 101
    recent.add(("", 2), [8] * 5)
    assert recent.of(("", 0))[0].tokens == []
