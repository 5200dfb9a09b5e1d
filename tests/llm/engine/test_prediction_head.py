"""A prediction head's draft tokens change how many steps an answer takes and nothing else.

The toy's hidden state is the sum that its answer follows from, so that its head is right where it
gets the hidden state of the right token, with the token after it.
"""

import numpy as np
import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from tests.llm.engine.test_draft_model import PROMPTS, SIZE, answers, params, run
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import FACTOR, PRIME


class Model(ToyRunner):
    def run(self, step):
        logits = super().run(step)
        states = []
        for row in step.rows:
            end = row.start + len(row.tokens)
            found = self._cache[list(row.blocks)].reshape(-1)[:end]
            totals = np.cumsum(found * self._factors[:end] % PRIME) % PRIME
            states += [(total, end) for total in totals[row.start :]]
        self.states = np.array(states, np.float64)
        return logits

    def hidden_states(self):
        return self.states


class Head(ToyRunner):
    fails, is_head = False, True

    def compute(self, step, hidden_states=None):
        if self.fails:
            raise RuntimeError("no")
        tokens, starts, rows = [], [], []
        for row in step.rows:
            rows += range(
                len(tokens) + len(row.tokens) - row.num_logits, len(tokens) + len(row.tokens)
            )
            tokens += row.tokens
            starts += range(row.start, row.start + len(row.tokens))
        totals = [
            (int(total) + (token + 1) * pow(FACTOR, start + 1, PRIME)) % PRIME
            for (total, _), token, start in zip(hidden_states, tokens, starts, strict=True)
        ]
        self.states = np.array([(totals[row], 0) for row in rows], np.float64).reshape(-1, 2)
        logits = np.zeros((len(rows), self.vocab_size), np.float32)
        logits[range(len(rows)), [totals[row] % self.vocab_size for row in rows]] = 1
        return logits

    def hidden_states(self):
        return self.states


def make(head=None, num_blocks=256, **options):
    config = {"block_size": SIZE, "max_num_seqs": 8, "num_speculative_tokens": 3, "min_ngram": 32}
    config |= {"adaptive_speculation": False, "mtp": head is not None, **options}
    runner = Model(num_blocks, SIZE, num_slots=config.pop("num_slots", 0))
    return Engine(runner, None, EngineConfig(**config), draft=head, clock=lambda: 0.0)


@pytest.mark.parametrize("options", [
    {}, {"max_num_batched_tokens": 16}, {"enable_prefix_caching": False}, {"num_slots": 17},
    {"num_speculative_tokens": 1}, {"num_blocks": 40},
])  # fmt: skip
def test_a_head_that_knows_its_model_is_right_but_for_the_room_of_blocks(options):
    expected = answers(make(), PROMPTS)
    engine = make(Head(options.get("num_blocks", 256), SIZE), **options)
    for _ in range(2):  # the second time with prefix hits
        assert answers(engine, PROMPTS) == expected
    stats = engine.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100
    assert (stats.num_preemptions > 0) == ("num_blocks" in options)


@pytest.mark.parametrize("options", [
    {"temperature": 0.9, "top_k": 6, "seed": 3}, {"n": 3, "temperature": 0.8, "seed": 1},
])  # fmt: skip
def test_sampled_answers_are_the_same_with_a_head(options):
    expected = answers(make(), PROMPTS, **options)
    engine = make(Head(256, SIZE))
    assert answers(engine, PROMPTS, **options) == expected
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens


def test_answers_go_on_without_a_head_that_fails(capfd):
    head = Head(256, SIZE)
    engine = make(head)
    engine.add("a", [1, 2, 3], params())
    engine.step()
    head.fails = True
    assert run(engine)["a", 0] == answers(make(), [[1, 2, 3]])["0", 0][1:]
    assert "prediction head failed" in capfd.readouterr().err


def test_a_head_and_a_draft_model_are_refused_together():
    with pytest.raises(InvalidInputs, match="mtp is True, which excludes draft"):
        EngineConfig(mtp=True, draft="small")
