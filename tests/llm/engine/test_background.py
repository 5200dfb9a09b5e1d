"""Requests of batches run in the background: by steps, no request of a client feels them."""

import pytest

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.errors import Overloaded
from mindspore_serving.llm.engine.scheduler import BACKGROUND_SHARE, BACKGROUND_TURN
from mindspore_serving.llm.engine.sequence import SequenceStatus
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation


def batch(tokens, arrival, max_len=40):
    return sequence(tokens, max_len=max_len, arrival=arrival, priority=BACKGROUND)


def test_a_request_is_admitted_before_batches_that_came_first():
    scheduler, runner = make(max_num_seqs=1)
    scheduler.add(batch([1, 2], arrival=0))
    chat = sequence([3, 4], max_len=6, arrival=1)
    scheduler.add(chat)
    assert advance(scheduler, runner).sequences == (chat,)


def test_a_batch_pauses_while_a_request_is_computed():
    scheduler, runner = make(num_blocks=64)
    offline = batch([1, 2], arrival=0)
    scheduler.add(offline)
    advance(scheduler, runner)
    chat = sequence(range(30), max_len=36, arrival=1)
    scheduler.add(chat)
    # The same steps as without a batch: 16 tokens, 14, then one each.
    steps = []
    while chat.status is not SequenceStatus.FINISHED:
        steps.append(advance(scheduler, runner))
    assert [each.sequences for each in steps] == [(chat,)] * 7
    assert [len(each.step.rows[0].tokens) for each in steps] == [16, 14, 1, 1, 1, 1, 1]
    assert advance(scheduler, runner).sequences == (offline,)
    run_all(scheduler, runner)
    assert offline.tokens[2:] == continuation([1, 2], 38, 128)
    check_all_returned(scheduler)


def test_a_batch_has_every_sixteenth_step_of_a_long_answer():
    scheduler, runner = make(num_blocks=64)
    offline = batch([1, 2], arrival=0)
    scheduler.add(offline)
    advance(scheduler, runner)
    chat = sequence([5], max_len=1 + 2 * BACKGROUND_TURN, arrival=1)
    scheduler.add(chat)
    shared = [offline in advance(scheduler, runner).sequences for _ in range(2 * BACKGROUND_TURN)]
    assert [index + 1 for index, is_shared in enumerate(shared) if is_shared] == [
        BACKGROUND_TURN,
        2 * BACKGROUND_TURN,
    ]


def test_a_request_preempts_batches_if_blocks_are_short():
    scheduler, runner = make(num_blocks=8, enable_prefix_caching=False)  # 32 tokens
    first, second = batch([1] * 10, arrival=0, max_len=16), batch([2] * 10, arrival=1, max_len=16)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(6):
        advance(scheduler, runner)
    chat = sequence([3] * 16, max_len=18, arrival=2)  # 4 blocks, of which fewer are free
    scheduler.add(chat)
    assert advance(scheduler, runner).sequences == (chat,)
    assert (first.status, second.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    run_all(scheduler, runner)
    for each in (first, second):
        assert each.tokens[10:] == continuation(each.tokens[:10], 6, 128)
    check_all_returned(scheduler)


def test_a_request_preempts_a_batch_that_has_the_last_sequence():
    scheduler, runner = make(max_num_seqs=1)
    offline = batch([1, 2], arrival=0)
    scheduler.add(offline)
    advance(scheduler, runner)
    chat = sequence([3, 4], max_len=6, arrival=1)
    scheduler.add(chat)
    assert advance(scheduler, runner).sequences == (chat,)
    assert offline.status is SequenceStatus.WAITING


def test_no_batch_is_preempted_for_a_request_that_would_not_fit_either():
    scheduler, runner = make(num_blocks=8, enable_prefix_caching=False)
    chat = sequence([1] * 16, max_len=19, arrival=0)
    offline = batch([2] * 4, arrival=1, max_len=8)
    scheduler.add(chat)
    scheduler.add(offline)
    advance(scheduler, runner)
    scheduler.add(sequence([3] * 20, max_len=24, arrival=2))
    advance(scheduler, runner)
    assert scheduler.num_preemptions == 0


def test_a_step_of_the_background_is_short():
    scheduler, runner = make(num_blocks=64)  # 16 tokens in a step
    scheduler.add(batch(range(30), arrival=0))
    assert advance(scheduler, runner).step.num_tokens == 16 // BACKGROUND_SHARE


def test_batches_that_wait_do_not_count_for_requests():
    scheduler, _ = make(max_num_waiting=2)
    for arrival in range(2):
        scheduler.add(batch([1, 2], arrival=arrival))
    scheduler.check_room(2)
    with pytest.raises(Overloaded):
        scheduler.check_room(2, BACKGROUND)
