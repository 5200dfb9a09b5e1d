"""Fair queue of tenants: who leaves next, and all else as in a Batcher."""

import random

import pytest

from mindspore_serving.batching import fair
from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.batching.fair import FairBatcher


def queue_of(*items: str, delay=0.0, preferred=0) -> "FairBatcher[str]":
    """Items have the name of their tenant in front; a capital letter costs 10."""
    batcher: Batcher[str] = Batcher(delay, preferred)
    for number, item in enumerate(items):
        batcher.add(item, float(number))
    return FairBatcher(batcher, lambda item: item[0].lower(), lambda item: 1 + 9 * item.isupper())


def taken(queue, count):
    return "".join(queue.take(count, 1e9))


def test_a_tenant_with_a_single_item_is_next():
    queue = queue_of(*"hhhhhhhh")
    assert taken(queue, 3) == "hhh"
    queue.add("l", 10.0)
    assert queue.num_ahead("l") == 3
    assert queue.num_ahead("m") == 2
    assert taken(queue, 2) in ("lh", "hl")


def test_items_of_a_tenant_keep_their_order():
    queue = queue_of("h1", "h2", "l1", "h3", "l2")
    assert list(queue) == ["h1", "h2", "l1", "h3", "l2"]
    assert queue.take(9, 1e9) == ["h1", "l1", "h2", "l2", "h3"]
    assert queue.peek() is None


def test_turns_are_shared_by_cost():
    queue = queue_of(*"H" * 5, *"l" * 50)
    assert taken(queue, 22).count("H") in (2, 3)


def test_an_item_that_is_returned_is_next_and_due_at_once():
    queue = queue_of(*"hl", delay=1e12)
    assert queue.take(1, 5.0) == []
    queue.put_back("x")
    assert (queue.peek(), len(queue)) == ("x", 3)
    assert queue.take(2, 5.0) == ["x", "h"]


@pytest.mark.parametrize(("delay", "preferred"), [(0, 0), (2000, 0), (2000, 3)])
def test_batches_are_complete_as_those_of_a_batcher(delay, preferred):
    plain: Batcher[str] = Batcher(delay, preferred)
    queue = FairBatcher(Batcher[str](delay, preferred), lambda item: item[0], lambda item: 1)
    draw = random.Random(5)
    for number in range(300):
        now = number * 0.7
        if draw.random() < 0.6:
            item = draw.choice("abc") + str(number)
            plain.add(item, now)
            queue.add(item, now)
        assert queue.is_complete(now) == plain.is_complete(now) or preferred
        if delay == 0:
            assert len(queue.take(2, now)) == len(plain.take(2, now))
        assert (len(queue), sorted(queue)) == (len(list(queue)), sorted(queue.sample(1000)))


def test_items_that_are_not_kept_leave():
    queue = queue_of(*"hlhmhl")
    queue.keep(lambda item: item != "h")
    assert (len(queue), taken(queue, 9)) == (3, "lml")
    queue.add("h", 20.0)
    assert (queue.clear(), len(queue), queue.due()) == (["h"], 0, None)


def test_many_tenants_are_forgotten_when_they_have_caught_up(monkeypatch):
    monkeypatch.setattr(fair, "MAX_TENANTS", 8)
    queue = queue_of(*"hhh")
    for number in range(100):
        queue.add(chr(0x4E00 + number), float(number))
        queue.take(1, 1e9)
    assert len(queue._next) <= 8 + 2 * len(queue)
    queue.take(9, 1e9)
    assert len(queue._next) == 0
