"""When a batch leaves, with a clock that the test sets."""

import pytest

from mindspore_serving.batching.batcher import Batcher


def batcher(*arrivals, max_batch_delay_ms=0.0, preferred_batch_size=0):
    """One with item "a" of the first arrival time, "b" of the second and so on."""
    made = Batcher(max_batch_delay_ms, preferred_batch_size)
    for item, now in zip("abcdefgh", arrivals, strict=False):
        made.add(item, now)
    return made


def test_without_a_delay_everything_leaves_at_once():
    assert batcher(0.0, 0.0, 0.0).take(8, now=0.0) == ["a", "b", "c"]


def test_the_oldest_leave_first_and_the_rest_stays():
    waiting = batcher(0.0, 1.0, 2.0)
    assert waiting.take(2, now=2.0) == ["a", "b"]
    assert len(waiting) == 1
    assert waiting.take(2, now=2.0) == ["c"]


def test_an_empty_batcher_gives_nothing_and_is_never_due():
    assert batcher().take(4, now=100.0) == []
    assert batcher().due() is None


def test_nothing_leaves_before_the_wait_is_over():
    waiting = batcher(10.0, 10.3, max_batch_delay_ms=500)
    assert waiting.due() == 10.5
    assert waiting.take(8, now=10.49) == []
    assert waiting.take(8, now=10.5) == ["a", "b"]


def test_the_wait_is_that_of_the_oldest_left():
    waiting = batcher(10.0, 10.3, max_batch_delay_ms=500)
    waiting.take(1, now=10.5)
    assert waiting.due() == 10.8


def test_a_preferred_size_leaves_without_waiting():
    waiting = batcher(0.0, 0.0, max_batch_delay_ms=10000, preferred_batch_size=3)
    assert waiting.take(8, now=0.1) == []
    waiting.add("c", 0.2)
    assert waiting.take(8, now=0.2) == ["a", "b", "c"]


def test_a_batch_is_at_most_the_preferred_size():
    waiting = batcher(0.0, 0.0, 0.0, 0.0, 0.0, max_batch_delay_ms=10000, preferred_batch_size=2)
    assert waiting.take(8, now=0.0) == ["a", "b"]
    assert waiting.take(8, now=0.0) == ["c", "d"]
    assert waiting.take(8, now=0.0) == []
    assert waiting.take(8, now=10.0) == ["e"]


def test_the_limit_of_the_taker_counts_too():
    assert batcher(0.0, 0.0, 0.0, max_batch_delay_ms=1000, preferred_batch_size=3).take(
        2, now=0.0
    ) == ["a", "b"]


def test_peek_returns_the_oldest_item_without_removing_that_item():
    waiting = batcher(0.0, 1.0)
    assert waiting.peek() == "a"
    assert waiting.take(8, now=1.0) == ["a", "b"]
    assert waiting.peek() is None


def test_items_put_back_are_first_and_overdue():
    waiting = batcher(5.0, max_batch_delay_ms=100000)
    waiting.put_back("z")
    assert waiting.due() == float("-inf")
    assert waiting.take(1, now=0.0) == ["z"]
    assert waiting.take(1, now=6.0) == []


def test_clear_takes_everything_out():
    waiting = batcher(0.0, 1.0, max_batch_delay_ms=100000)
    assert waiting.clear() == ["a", "b"]
    assert len(waiting) == 0
    assert waiting.due() is None


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_take_never_gives_more_than_asked(limit):
    assert len(batcher(0.0, 0.0).take(limit, now=0.0)) == min(limit, 2)


def test_a_sample_is_spread_over_the_queue():
    batcher = Batcher()
    for number in range(10):
        batcher.add(number, 0.0)
    assert batcher.sample(100) == list(range(10))
    assert batcher.sample(3) == [0, 4, 8]
    assert Batcher().sample() == []


def test_keep_removes_items_and_preserves_order_and_due_time():
    waiting = batcher(0.0, 1.0, 2.0, max_batch_delay_ms=1000)
    waiting.keep(lambda item: item != "a")
    assert list(waiting) == ["b", "c"]
    assert waiting.due() == 2.0
