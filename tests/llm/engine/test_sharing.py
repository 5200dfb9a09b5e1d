"""Prompts that begin alike and come together: what they share is computed once."""

from collections import Counter

import pytest

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.runtimes.toy import ToyRunner
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation

BLOCK = 4
PROMPT = list(range(42))  # ten full blocks, and two tokens
REST = len(PROMPT) % BLOCK


class Counting(ToyRunner):
    """Counts how often each position of a prompt is computed."""

    def __init__(self, num_blocks=200):
        super().__init__(num_blocks, BLOCK)
        self.computed = Counter()

    def run(self, step):
        for row in step.rows:
            self.computed.update(range(row.start, row.start + len(row.tokens)))
        return super().run(step)


def answers(runner, prompts, count=3, budget=16, **options):
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=budget, block_size=BLOCK)
    engine = Engine(runner, None, config)
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        own = {name: values[index] for name, values in options.items()}
        engine.add(f"{index}", prompt, params, **own)
    found = {f"{index}": [] for index in range(len(prompts))}
    cached = {}
    while engine.has_work:
        for request_id, one in engine.step():
            found[request_id] += one.token_ids
            if one.finish_reason is not None:
                cached[request_id] = one.num_cached_tokens
    return list(found.values()), [cached[request_id] for request_id in found]


@pytest.mark.parametrize("budget", [16, 64, 1000])  # the prompt in pieces, and in one step
def test_sixteen_equal_prompts_that_come_together_are_computed_once(budget):
    runner = Counting()
    found, cached = answers(runner, [PROMPT] * 16, budget=budget)
    assert found == [continuation(PROMPT, 3, 128)] * 16
    shared = len(PROMPT) - REST
    assert [runner.computed[place] for place in range(shared)] == [1] * shared
    assert [runner.computed[place] for place in range(shared, len(PROMPT))] == [16] * REST
    assert cached == [0] + [shared] * 15


def test_prompts_that_extend_one_another_share_what_is_alike():
    runner = Counting()
    prompts = [PROMPT[:20], PROMPT, [*PROMPT[:30], *[99] * 12]]
    found, _ = answers(runner, prompts)
    assert found == [continuation(prompt, 3, 128) for prompt in prompts]
    assert all(runner.computed[place] == 1 for place in range(16))


def test_prompts_with_other_salts_or_adapters_share_nothing():
    runner = Counting()
    prompts = [PROMPT] * 3
    answers(runner, prompts, count=1, cache_salt=["", "a", ""], adapter=[0, 0, 1])
    assert [runner.computed[place] for place in range(len(PROMPT))] == [3] * len(PROMPT)


def test_one_that_waits_to_share_keeps_no_other_waiting():
    scheduler, runner = make(num_blocks=64)  # 16 tokens in a step
    for arrival, prompt in enumerate([PROMPT, PROMPT, [7, 8]]):
        scheduler.add(sequence(prompt, max_len=44, arrival=arrival))
    assert len(advance(scheduler, runner).sequences) == 1
    advance(scheduler, runner)
    third = advance(scheduler, runner)  # the last 10 tokens of the first prompt
    assert [seq.order[1] for seq in third.sequences] == [0, 2]
    assert advance(scheduler, runner).sequences[-1].order[1] == 1
    run_all(scheduler, runner)
    check_all_returned(scheduler)


def test_an_urgent_prompt_does_not_wait_for_one_that_is_not():
    scheduler, runner = make(num_blocks=64, max_num_batched_tokens=24)
    scheduler.add(sequence(PROMPT, max_len=44, arrival=0, priority=1))
    advance(scheduler, runner)
    scheduler.add(sequence([*PROMPT[:40], 1, 2, 3], max_len=46, arrival=1, priority=0))
    assert [seq.order[1] for seq in advance(scheduler, runner).sequences] == [0, 1]


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
