"""Queues of several levels."""

import pytest

from mindspore_serving.batching.priority import PriorityBatcher


def make(delay: float = 0, preferred: int = 0) -> PriorityBatcher[str]:
    """A queue of three levels, of texts that begin with theirs."""
    return PriorityBatcher(delay, preferred, 3, lambda text: int(text[0]))


def filled(*items: str, **options: float) -> PriorityBatcher[str]:
    queue = make(**options)  # type: ignore[arg-type]
    for now, item in enumerate(items):
        queue.add(item, now)
    return queue


def test_higher_levels_leave_first_and_each_level_in_order() -> None:
    queue = filled("2a", "0a", "1a", "0b", "2b")
    assert queue.peek() == "0a"
    assert list(queue) == ["0a", "0b", "1a", "2a", "2b"]
    assert queue.take(4, 9) == ["0a", "0b", "1a", "2a"]
    assert (len(queue), queue.take(4, 9), queue.peek()) == (1, ["2b"], None)


def test_an_item_that_is_put_back_is_the_first_of_its_level() -> None:
    queue = filled("0a", "1a")
    queue.put_back("1b")
    assert queue.take(9, 0) == ["0a", "1b", "1a"]


def test_a_batch_waits_for_the_oldest_item_of_any_level() -> None:
    queue = filled("2a", "0a", delay=5000)
    assert queue.due() == 5
    assert queue.take(9, 4.9) == []
    assert queue.take(9, 5) == ["0a", "2a"]


def test_items_of_all_levels_fill_a_batch() -> None:
    queue = filled("2a", "1a", "0a", delay=9000, preferred=3)
    assert queue.take(9, 0) == ["0a", "1a", "2a"]
    assert queue.due() is None


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_sample_is_spread_over_the_levels(limit: int) -> None:
    items = [f"{number % 3}{number}" for number in range(9)]
    sample = filled(*items).sample(limit)
    assert 1 <= len(sample) <= limit
    assert sample[0] == "00"


def test_items_can_be_removed() -> None:
    queue = filled("0a", "1b", "2a")
    queue.keep(lambda item: item.endswith("a"))
    assert queue.clear() == ["0a", "2a"]
    assert len(queue) == 0
