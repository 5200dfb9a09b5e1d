import pytest

from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation, next_token


def rows(scheduled):
    return [(row.start, len(row.tokens), row.num_logits) for row in scheduled.step.rows]


def test_the_toy_computes_its_formula():
    # (5+1)*1 + (7+1)*31 + (9+1)*961 = 9864, and 9864 mod 128 = 8
    assert next_token([5, 7, 9], 128) == 8


def test_a_prompt_is_read_and_then_continued_token_by_token():
    scheduler, runner = make()
    seq = sequence([5, 7, 9], max_len=6)
    scheduler.add(seq)
    assert rows(advance(scheduler, runner)) == [(0, 3, 1)]
    assert seq.tokens == [5, 7, 9, 8]
    assert rows(advance(scheduler, runner)) == [(3, 1, 1)]
    assert rows(advance(scheduler, runner)) == [(4, 1, 1)]
    assert seq.status is SequenceStatus.FINISHED
    assert seq.tokens == [5, 7, 9, *continuation([5, 7, 9], 3, 128)]
    assert not scheduler.has_work


def test_a_step_mixes_decoding_and_a_piece_of_a_long_prompt():
    scheduler, runner = make(num_blocks=32)  # 16 tokens per step
    scheduler.add(sequence([1, 2], max_len=10, arrival=0))
    advance(scheduler, runner)
    scheduler.add(sequence(range(40), max_len=42, arrival=1))
    # One token for the first, 15 for the second, until its 40 are read: 15 + 15 + 10.
    assert rows(advance(scheduler, runner)) == [(2, 1, 1), (0, 15, 0)]
    assert rows(advance(scheduler, runner)) == [(3, 1, 1), (15, 15, 0)]
    assert rows(advance(scheduler, runner)) == [(4, 1, 1), (30, 10, 1)]
    assert rows(advance(scheduler, runner)) == [(5, 1, 1), (40, 1, 1)]


def test_the_remaining_budget_of_a_step_goes_to_the_next_prompt():
    scheduler, runner = make()
    scheduler.add(sequence([1] * 10, max_len=12, arrival=0))
    scheduler.add(sequence([2] * 10, max_len=12, arrival=1))
    assert rows(advance(scheduler, runner)) == [(0, 10, 1), (0, 6, 0)]
    assert rows(advance(scheduler, runner)) == [(10, 1, 1), (6, 4, 1)]


def test_no_more_sequences_run_than_allowed():
    scheduler, runner = make(max_num_seqs=2)
    for arrival in range(3):
        scheduler.add(sequence([arrival], max_len=3, arrival=arrival))
    assert len(advance(scheduler, runner).sequences) == 2
    assert len(scheduler.waiting) == 1
    run_all(scheduler, runner)
    check_all_returned(scheduler)


def test_the_urgent_run_first_and_equals_in_order_of_arrival():
    scheduler, runner = make(max_num_seqs=1)
    for arrival, priority in enumerate([1, 0, 1, -1]):
        scheduler.add(sequence([arrival], max_len=2, arrival=arrival, priority=priority))
    ended = []
    while scheduler.has_work:
        ended += [seq.order[1] for seq in advance(scheduler, runner).sequences]
    assert ended == [3, 1, 0, 2]


def test_a_prompt_waits_until_the_cache_has_room_for_all_its_tokens():
    scheduler, runner = make(num_blocks=4)  # 16 tokens
    first = sequence([1] * 12, max_len=14, arrival=0)  # 3 blocks, 4 when it ends
    second = sequence([2] * 8, max_len=9, arrival=1)  # 2 blocks
    scheduler.add(first)
    scheduler.add(second)
    assert advance(scheduler, runner).sequences == (first,)
    assert advance(scheduler, runner).sequences == (first,)
    assert first.status is SequenceStatus.FINISHED
    assert advance(scheduler, runner).sequences == (second,)


def test_small_prompts_do_not_overtake_a_prompt_that_waits_for_room():
    scheduler, runner = make(num_blocks=4)
    first = sequence([1] * 12, max_len=14, arrival=0)
    large = sequence([2] * 8, max_len=9, arrival=1)
    small = sequence([3], max_len=2, arrival=2)
    for seq in (first, large, small):
        scheduler.add(seq)
    assert advance(scheduler, runner).sequences == (first,)
    advance(scheduler, runner)
    assert set(advance(scheduler, runner).sequences) == {large, small}


def test_the_youngest_gives_way_and_is_computed_anew():
    scheduler, runner = make(num_blocks=4, enable_prefix_caching=False)
    old = sequence([1] * 7, max_len=12, arrival=0)  # 2 blocks at first, 3 in the end
    young = sequence([2] * 7, max_len=12, arrival=1)
    scheduler.add(old)
    scheduler.add(young)
    advance(scheduler, runner)  # both read: 8 tokens each with the first of the answer
    advance(scheduler, runner)  # position 7 of both is in the second block
    third = advance(scheduler, runner)  # position 8 of both needs a third block: there is none
    assert third.sequences == (old,)
    assert (young.status, young.num_computed, young.blocks) == (SequenceStatus.WAITING, 0, [])
    assert scheduler.num_preemptions == 1
    run_all(scheduler, runner)
    for seq in (old, young):
        assert seq.tokens[7:] == continuation(seq.tokens[:7], 5, 128)
    check_all_returned(scheduler)


def test_the_less_urgent_sequence_is_preempted_even_if_older():
    scheduler, runner = make(num_blocks=4, enable_prefix_caching=False)
    old = sequence([1] * 7, max_len=12, arrival=0, priority=1)
    urgent = sequence([2] * 7, max_len=12, arrival=1, priority=0)
    scheduler.add(old)
    scheduler.add(urgent)
    for _ in range(3):
        advance(scheduler, runner)
    assert old.status is SequenceStatus.WAITING
    assert urgent.status is SequenceStatus.RUNNING


def test_prompts_with_the_same_prefix_share_blocks():
    scheduler, runner = make()
    prompt = list(range(10))
    scheduler.add(sequence(prompt, max_len=11))
    run_all(scheduler, runner)
    seq = sequence([*prompt[:8], 99], max_len=12)
    scheduler.add(seq)
    assert rows(advance(scheduler, runner)) == [(8, 1, 1)]  # two blocks of four are known
    run_all(scheduler, runner)
    assert seq.tokens[9:] == continuation(seq.tokens[:9], 3, 128)
    assert (scheduler.cache.num_hits, scheduler.cache.num_queries) == (8, 19)


def test_the_last_token_is_computed_even_if_all_blocks_are_known():
    scheduler, runner = make()
    for arrival in range(2):
        seq = sequence(range(8), max_len=9, arrival=arrival)
        scheduler.add(seq)
        scheduled = advance(scheduler, runner)
    assert rows(scheduled) == [(4, 4, 1)]
    assert seq.tokens[8] == next_token(list(range(8)), 128)


def test_sequences_that_run_share_blocks_too():
    scheduler, runner = make()
    first = sequence(range(9), max_len=20, arrival=0)
    scheduler.add(first)
    advance(scheduler, runner)
    second = sequence(range(9), max_len=20, arrival=1)
    scheduler.add(second)
    advance(scheduler, runner)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]


@pytest.mark.parametrize("other", [{"salt": "other tenant"}, {"adapter": 1}])
def test_another_salt_or_adapter_shares_nothing(other):
    scheduler, runner = make()
    scheduler.add(sequence(range(10), max_len=11, salt="tenant"))
    run_all(scheduler, runner)
    seq = sequence(range(10), max_len=11, **{"salt": "tenant", **other})
    scheduler.add(seq)
    assert rows(advance(scheduler, runner)) == [(0, 10, 1)]
    assert seq.tokens[10] == next_token(list(range(10)), 128, other.get("adapter", 0))


def test_generated_blocks_are_shared_by_the_next_turn_of_a_conversation():
    scheduler, runner = make()
    first = sequence([1, 2, 3], max_len=10)
    scheduler.add(first)
    run_all(scheduler, runner)
    second = sequence([*first.tokens, 4, 5], max_len=14)
    scheduler.add(second)
    # Of the ten tokens nine are computed (the last was never needed): two full blocks.
    assert rows(advance(scheduler, runner)) == [(8, 4, 1)]


def test_without_prefix_caching_everything_is_computed():
    scheduler, runner = make(enable_prefix_caching=False)
    for arrival in range(2):
        scheduler.add(sequence(range(8), max_len=9, arrival=arrival))
        assert rows(advance(scheduler, runner)) == [(0, 8, 1)]


def fork(scheduler, parent, tokens):
    children = [parent.fork(index, token) for index, token in enumerate(tokens, 1)]
    for child in children:
        scheduler.fork(parent, child)
    return children


def test_forks_share_the_prompt_and_copy_its_last_block_when_they_write():
    scheduler, runner = make()
    parent = sequence([1, 2, 3, 4, 5, 6], max_len=12)
    scheduler.add(parent)
    advance(scheduler, runner)
    (child,) = fork(scheduler, parent, [77])
    assert child.blocks == parent.blocks
    shared = child.blocks[1]
    scheduled = advance(scheduler, runner)
    (copy,) = scheduled.step.copies  # one copies; the other is then alone
    assert copy == (shared, parent.blocks[1])
    assert child.blocks[1] == shared
    assert child.blocks[0] == parent.blocks[0]
    run_all(scheduler, runner)
    assert parent.tokens[6:] == continuation(parent.tokens[:6], 6, 128)
    assert child.tokens[6] == 77
    assert child.tokens[7:] == continuation(child.tokens[:7], 5, 128)
    check_all_returned(scheduler)


def test_forks_of_full_blocks_copy_nothing():
    scheduler, runner = make()
    parent = sequence(range(8), max_len=11)
    scheduler.add(parent)
    advance(scheduler, runner)
    fork(scheduler, parent, [77, 78])
    assert advance(scheduler, runner).step.copies == ()
    run_all(scheduler, runner)
    check_all_returned(scheduler)


def test_forks_that_find_no_room_wait_and_are_answered_right():
    scheduler, runner = make(max_num_seqs=2)
    parent = sequence([1, 2, 3, 4, 5], max_len=9)
    scheduler.add(parent)
    advance(scheduler, runner)
    children = fork(scheduler, parent, [70, 71, 72])
    assert [child.status for child in children] == [
        SequenceStatus.RUNNING,
        *[SequenceStatus.WAITING] * 2,
    ]
    run_all(scheduler, runner)
    for child in children:
        assert child.tokens[6:] == continuation(child.tokens[:6], 3, 128)
    check_all_returned(scheduler)


def test_a_preempted_sharer_leaves_the_block_to_the_other_without_a_copy():
    scheduler, runner = make(num_blocks=2)
    parent = sequence([1, 2, 3, 4, 5, 6], max_len=8)
    scheduler.add(parent)
    advance(scheduler, runner)
    (child,) = fork(scheduler, parent, [77])
    scheduled = advance(scheduler, runner)  # no block to copy into: the child has to go
    assert scheduled.sequences == (parent,)
    assert scheduled.step.copies == ()
    assert child.status is SequenceStatus.WAITING
    run_all(scheduler, runner)
    assert parent.tokens[6:] == continuation(parent.tokens[:6], 2, 128)
    assert child.tokens[7:] == continuation(child.tokens[:7], 1, 128)
    check_all_returned(scheduler)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_returns_the_blocks_at_the_next_step(steps):
    scheduler, runner = make()
    seq = sequence(range(20), max_len=30)
    other = sequence([1], max_len=40, arrival=1)
    scheduler.add(seq)
    scheduler.add(other)
    for _ in range(steps):  # waiting; half of the prompt read; decoding
        advance(scheduler, runner)
    scheduler.abort(seq)
    scheduler.abort(seq)
    assert advance(scheduler, runner).sequences == (other,)
    assert seq.status is SequenceStatus.FINISHED
    assert scheduler.pool.num_blocks - scheduler.pool.num_free == len(other.blocks)


def test_an_abort_during_a_step_frees_the_blocks_at_the_next_step():
    scheduler, runner = make()
    seq = sequence([1, 2, 3], max_len=9)
    scheduler.add(seq)
    scheduled = scheduler.schedule()
    scheduler.abort(seq)
    assert scheduler.pool.num_free == 15
    scheduler.finish_step(scheduled, [[5]])
    assert seq.tokens == [1, 2, 3]
    assert scheduler.schedule().step.rows == ()
    assert scheduler.pool.num_free == 16


def test_accepted_draft_tokens_are_kept_up_to_the_first_rejected():
    scheduler, runner = make()
    prompt = [5, 7, 9]
    answer = continuation(prompt, 9, 128)
    seq = sequence(prompt, max_len=12)
    scheduler.add(seq)
    advance(scheduler, runner)
    seq.draft = [answer[1], answer[2], (answer[3] + 1) % 128, answer[4]]
    assert rows(advance(scheduler, runner)) == [(3, 5, 5)]
    assert seq.tokens == prompt + answer[:4]  # two guesses, and what follows them
    assert seq.num_computed == 6
    seq.draft = answer[4:8]
    advance(scheduler, runner)
    assert seq.tokens == prompt + answer
    assert seq.status is SequenceStatus.FINISHED
    check_all_returned(scheduler)


def test_guesses_never_pass_the_end_of_the_sequence():
    scheduler, runner = make()
    seq = sequence([5, 7, 9], max_len=6)
    scheduler.add(seq)
    advance(scheduler, runner)
    seq.draft = [1, 1, 1, 1]
    assert rows(advance(scheduler, runner)) == [(3, 2, 2)]  # positions 3 and 4; 5 is the last


def test_guesses_take_free_blocks_but_preempt_nobody():
    scheduler, runner = make(num_blocks=2)
    seq = sequence([5, 7, 9], max_len=8, arrival=0)
    other = sequence([1, 1], max_len=4, arrival=1)
    scheduler.add(seq)
    scheduler.add(other)
    advance(scheduler, runner)
    seq.draft = [1, 1, 1]
    assert rows(advance(scheduler, runner)) == [(3, 1, 1), (2, 1, 1)]


def test_guesses_leave_half_of_the_step_to_prompts():
    scheduler, runner = make(num_blocks=32, max_num_batched_tokens=10, max_num_seqs=4)
    seq = sequence([5, 7, 9], max_len=30, arrival=0)
    scheduler.add(seq)
    advance(scheduler, runner)
    scheduler.add(sequence([2] * 30, max_len=31, arrival=1))
    advance(scheduler, runner)
    seq.draft = [1] * 8
    assert rows(advance(scheduler, runner)) == [(4, 5, 5), (9, 5, 0)]


def test_a_scored_prompt_wants_all_logits_in_bounded_pieces():
    scheduler, runner = make(num_blocks=64, max_num_batched_tokens=100)
    seq = sequence([3] * 100, max_len=101, logits_from=0)
    scheduler.add(seq)
    assert rows(advance(scheduler, runner)) == [(0, 64, 64)]
    assert rows(advance(scheduler, runner)) == [(64, 36, 36)]


def test_a_prompt_with_logprobs_shares_no_block_before_its_scores():
    scheduler, runner = make()
    scheduler.add(sequence(range(10), max_len=11))
    run_all(scheduler, runner)
    scheduler.add(sequence(range(10), max_len=12, arrival=1, logits_from=0))
    assert rows(advance(scheduler, runner)) == [(0, 10, 10)]


def test_returned_prompt_scores_are_not_repeated_after_a_preemption():
    scheduler, runner = make(num_blocks=8, enable_prefix_caching=False)
    old = sequence([1] * 7, max_len=24, arrival=0)
    scored = sequence([2] * 20, max_len=24, arrival=1, logits_from=0)
    scheduler.add(old)
    scheduler.add(scored)
    assert rows(advance(scheduler, runner)) == [(0, 7, 1), (0, 9, 9)]
    while scored.status is SequenceStatus.RUNNING:
        advance(scheduler, runner)
    assert scored.num_computed == 0
    wanted = scored.logits_from
    assert wanted >= 20
    while scored.status is SequenceStatus.WAITING:
        scheduled = advance(scheduler, runner)
    assert scheduled.step.rows[-1].num_logits == 0  # the first 16 of 21 tokens or more
    run_all(scheduler, runner)
    assert scored.tokens[20:] == continuation(scored.tokens[:20], 4, 128)


def test_finishing_a_waiting_fork_removes_the_fork_from_the_queue():
    scheduler, runner = make(max_num_seqs=1)
    parent = sequence([1, 2, 3], max_len=9)
    scheduler.add(parent)
    advance(scheduler, runner)
    (child,) = fork(scheduler, parent, [7])
    scheduler.finish(child)
    assert scheduler.waiting == []
    assert isinstance(child, Sequence)
