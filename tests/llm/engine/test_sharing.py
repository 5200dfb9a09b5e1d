"""Prompts that begin alike and come together: what they share is computed once."""

import pytest

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from tests.llm.counting import BLOCK, PROMPT, Counting, ask
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation

REST = len(PROMPT) % BLOCK


def answers(runner, prompts, count=3, budget=16, **each):
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=budget, block_size=BLOCK)
    return ask(Engine(runner, None, config), prompts, count, each)


@pytest.mark.parametrize("budget", [16, 64, 1000])  # the prompt in pieces, and in one step
def test_sixteen_equal_prompts_that_come_together_are_computed_once(budget):
    runner = Counting(200)
    found, cached = answers(runner, [PROMPT] * 16, budget=budget)
    assert found == [continuation(PROMPT, 3, 128)] * 16
    shared = len(PROMPT) - REST
    assert [runner.computed[place] for place in range(shared)] == [1] * shared
    assert [runner.computed[place] for place in range(shared, len(PROMPT))] == [16] * REST
    assert cached == [0] + [shared] * 15


def test_prompts_that_extend_another_prompt_share_its_blocks():
    runner = Counting(200)
    prompts = [PROMPT[:20], PROMPT, [*PROMPT[:30], *[99] * 12]]
    found, _ = answers(runner, prompts)
    assert found == [continuation(prompt, 3, 128) for prompt in prompts]
    assert all(runner.computed[place] == 1 for place in range(16))


def test_prompts_with_other_salts_or_adapters_share_nothing():
    runner = Counting(200)
    prompts = [PROMPT] * 3
    answers(runner, prompts, count=1, cache_salt=["", "a", ""], adapter=[0, 0, 1])
    assert [runner.computed[place] for place in range(len(PROMPT))] == [3] * len(PROMPT)


def test_a_prompt_that_waits_for_blocks_is_overtaken():
    scheduler, runner = make(num_blocks=64)  # 16 tokens in a step
    for arrival, prompt in enumerate([PROMPT, PROMPT, [7, 8]]):
        scheduler.add(sequence(prompt, max_len=44, arrival=arrival))
    for _ in range(3):  # all 42 tokens of the first prompt, 14 of them beside the last prompt
        found = advance(scheduler, runner)
        assert sorted(seq.order[1] for seq in found.sequences) == [0, 2]
    assert advance(scheduler, runner).sequences[-1].order[1] == 1
    run_all(scheduler, runner)
    check_all_returned(scheduler)


def test_an_urgent_prompt_does_not_wait_for_less_urgent_prompts():
    scheduler, runner = make(num_blocks=64, max_num_batched_tokens=24)
    scheduler.add(sequence(PROMPT, max_len=44, arrival=0, priority=1))
    advance(scheduler, runner)
    scheduler.add(sequence([*PROMPT[:40], 1, 2, 3], max_len=46, arrival=1, priority=0))
    assert sorted(seq.order[1] for seq in advance(scheduler, runner).sequences) == [0, 1]


def test_when_the_first_is_aborted_the_next_goes_on_from_its_blocks():
    scheduler, runner = make(num_blocks=64)
    first, second = (sequence(PROMPT, max_len=44, arrival=arrival) for arrival in range(2))
    scheduler.add(first)
    scheduler.add(second)
    advance(scheduler, runner)
    scheduler.abort(first)
    scheduled = advance(scheduler, runner)
    assert scheduled.sequences == (second,)
    assert scheduled.step.rows[0].start == 16
    run_all(scheduler, runner)
    assert second.tokens == [*PROMPT, *continuation(PROMPT, 2, 128)]
    check_all_returned(scheduler)
