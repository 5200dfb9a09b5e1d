"""How prompts share the steps, counted in steps."""

import pytest

from mindspore_serving.llm.engine.sequence import SequenceStatus
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation

BUDGET, VOCAB = 16, 128


def prompts(*lengths, priorities=()):
    """Sequences with so many tokens, none of which begins as another does, and one of an answer."""
    found = []
    for place, length in enumerate(lengths):
        priority = priorities[place] if priorities else 0
        tokens = [place % VOCAB, *[1] * (length - 1)]
        found.append(sequence(tokens, length + 1, arrival=place, priority=priority))
    return found


def steps_until(scheduler, runner, sequences, most=1000):
    """The number of the step with which each has its first token."""
    found = {}
    for count in range(1, most):
        advance(scheduler, runner)
        for place, one in enumerate(sequences):
            if one.status is SequenceStatus.FINISHED:
                found.setdefault(place, count)
        if len(found) == len(sequences):
            return [found[place] for place in range(len(sequences))]
    raise AssertionError("there is no end")


def start(*sequences, **options):
    scheduler, runner = make(num_blocks=256, max_num_batched_tokens=BUDGET, **options)
    for one in sequences:
        scheduler.add(one)
    return scheduler, runner


def test_a_long_prompt_alone_gets_all_of_every_step():
    long = prompts(160)
    scheduler, runner = start(*long)
    assert steps_until(scheduler, runner, long) == [10]


def test_a_short_prompt_is_done_in_a_step_beside_a_long_prompt():
    long, short = prompts(160, 6)
    scheduler, runner = start(long)
    advance(scheduler, runner)
    scheduler.add(short)
    found = advance(scheduler, runner)
    assert short.status is SequenceStatus.FINISHED
    sizes = [len(row.tokens) for row in found.step.rows]
    assert dict(zip(found.sequences, sizes, strict=True)) == {long: BUDGET - 6, short: 6}
    run_all(scheduler, runner)
    assert long.tokens[160:] == continuation(long.tokens[:160], 1, VOCAB)
    check_all_returned(scheduler)


def test_a_short_prompt_overtakes_long_prompts_that_wait():
    crowd = prompts(160, 160, 160, 6)
    scheduler, runner = start(*crowd)
    assert steps_until(scheduler, runner, crowd) == [11, 21, 31, 1]


def test_a_prompt_waits_only_for_shorter_prompts():
    """Half of a step is 8 tokens: those of 4, 12 and 24 wait for each other, and for no longer."""
    crowd = prompts(160, 24, 12, 4)
    scheduler, runner = start(*crowd)
    first, *others = steps_until(scheduler, runner, crowd)
    assert others == [5, 2, 1]
    assert first == -(-sum(one.max_len - 1 for one in crowd) // BUDGET)


def test_equal_prompts_are_answered_in_the_order_in_which_they_came():
    crowd = prompts(48, 48, 48)
    scheduler, runner = start(*crowd)
    assert steps_until(scheduler, runner, crowd) == [3, 6, 9]


@pytest.mark.parametrize("length", [1, 6, 8, 40])
def test_endless_short_prompts_delay_a_long_prompt_to_twice_its_steps(length):
    (long,) = prompts(160)
    scheduler, runner = start(long)
    for count in range(1, 40):
        for place in range(8):  # more than there is room for
            scheduler.add(sequence([5] * length, length + 1, arrival=100 * count + place))
        advance(scheduler, runner)
        if long.status is SequenceStatus.FINISHED:
            break
    assert count <= 2 * 160 // BUDGET


def test_an_urgent_long_prompt_is_not_overtaken_by_less_urgent_prompts():
    crowd = prompts(160, 6, priorities=(0, 1))
    scheduler, runner = start(*crowd)
    assert steps_until(scheduler, runner, crowd) == [10, 11]


def test_who_passes_takes_neither_the_place_nor_the_memory_of_who_waits():
    long, second, short = prompts(160, 64, 6)
    scheduler, runner = start(long, second, short, max_num_seqs=2)  # a place for the second
    assert short not in advance(scheduler, runner).sequences
    scheduler, runner = make(num_blocks=50, max_num_batched_tokens=BUDGET)  # 200 tokens
    long, second, short = prompts(160, 64, 6)
    for one in (long, second, short):
        scheduler.add(one)
    assert advance(scheduler, runner).sequences == (long,)
    run_all(scheduler, runner)
    check_all_returned(scheduler)


def test_a_scored_short_prompt_leaves_its_budget_to_the_long_prompt():
    """A step scores 64 tokens of a prompt at most."""
    long = sequence([1] * 200, 201)
    scored = sequence([2] * 100, 101, arrival=1, logits_from=0)
    scheduler, runner = make(num_blocks=256, max_num_batched_tokens=180)
    for one in (long, scored):
        scheduler.add(one)
    found = advance(scheduler, runner)
    assert sorted(len(row.tokens) for row in found.step.rows) == [64, 116]
