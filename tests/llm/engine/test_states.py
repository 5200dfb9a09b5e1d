"""Which states of sequences are kept and found again, with the toy runner."""

from tests.llm.driving import advance, make, run_all, sequence
from tests.llm.toy_answers import continuation

VOCAB, BLOCK = 128, 4
OPTIONS = {"num_blocks": 64, "block_size": BLOCK, "num_slots": 33, "max_num_batched_tokens": 64}


def answered(scheduler, runner, prompt, *, arrival, more=2, **options):
    """How many tokens of `prompt` were found in the cache; its answer is checked."""
    seq = sequence(prompt, len(prompt) + more, arrival, **options)
    scheduler.add(seq)
    run_all(scheduler, runner)
    assert seq.tokens[len(prompt) :] == continuation(prompt, more, VOCAB)
    return seq.num_cached


def test_a_prompt_goes_on_from_the_last_block_whose_state_is_kept():
    """Of a prompt that is read in one step, the state at the end of its last whole block is."""
    scheduler, runner = make(**OPTIONS)
    prompt = list(range(30))
    assert answered(scheduler, runner, prompt, arrival=0) == 0
    assert answered(scheduler, runner, [*prompt, 50, 51], arrival=1) == 28


def test_a_prompt_that_ends_with_a_block_hits_the_prefix_cache():
    scheduler, runner = make(**OPTIONS)
    prompt = list(range(32))
    assert answered(scheduler, runner, prompt, arrival=0) == 0
    assert answered(scheduler, runner, prompt, arrival=1) == 28


def test_where_prompts_part_a_state_is_kept_the_second_time():
    """The first one was read past that place at once; the third finds what they have in common."""
    scheduler, runner = make(**OPTIONS)
    common = list(range(20))
    found = [
        answered(scheduler, runner, [*common, *range(60 + 10 * i, 70 + 10 * i)], arrival=i)
        for i in range(3)
    ]
    assert found == [0, 0, 20]


def test_a_conversation_goes_on_from_its_last_answer():
    scheduler, runner = make(**OPTIONS)
    prompt = list(range(10))
    assert answered(scheduler, runner, prompt, arrival=0, more=14) == 0
    longer = [*prompt, *continuation(prompt, 14, VOCAB), 7, 8]
    assert answered(scheduler, runner, longer, arrival=1) == 20


def test_a_decoding_sequence_keeps_a_single_state():
    """Else one long answer would take the place of all other states."""
    scheduler, runner = make(**OPTIONS)
    answered(scheduler, runner, list(range(10)), arrival=0, more=60)
    assert scheduler.cache.states.pool.num_cached == 2  # that of the prompt, and the last one


def test_states_are_not_shared_between_salts():
    scheduler, runner = make(**OPTIONS)
    prompt = list(range(30))
    assert answered(scheduler, runner, prompt, arrival=0, salt="one") == 0
    assert answered(scheduler, runner, prompt, arrival=1, salt="other") == 0


def test_without_prefix_caching_no_state_is_kept():
    scheduler, runner = make(**OPTIONS, enable_prefix_caching=False)
    prompt = list(range(30))
    assert answered(scheduler, runner, prompt, arrival=0) == 0
    assert answered(scheduler, runner, prompt, arrival=1) == 0
    assert scheduler.cache.states.pool.num_cached == 0


def test_as_many_sequences_run_as_there_are_states_for():
    scheduler, runner = make(64, BLOCK, num_slots=5)
    for arrival in range(6):
        scheduler.add(sequence([arrival, 1, 2], 8, arrival))
    scheduler.schedule()
    assert len(scheduler.running) == 2
    assert len(scheduler.waiting) == 4


def test_a_state_before_rejected_draft_tokens_is_continued_and_found_again():
    """Each step has one accepted draft token and two rejected ones; blocks have four tokens."""
    scheduler, runner = make(**OPTIONS)
    prompt, answer = list(range(10)), continuation(list(range(10)), 26, VOCAB)
    seq = sequence(prompt, len(prompt) + 26)
    scheduler.add(seq)
    while scheduler.has_work:
        if seq.is_decoding:
            begin = len(seq.tokens) - len(prompt)
            seq.draft = [*answer[begin : begin + 1], 0, 0]
        advance(scheduler, runner)
    assert seq.tokens[len(prompt) :] == answer
    assert scheduler.cache.states.pool.num_cached == 2  # that of the prompt, and the last one
    assert answered(scheduler, runner, [*prompt, *answer, 7, 8], arrival=1) >= 28
