"""How many requests each servable may have in flight, within the limit of the server."""

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.shares import Shares


def num_taken(shares, share, most=1000):
    """How many requests are taken before one is refused; at most `most`."""
    for number in range(most):
        try:
            shares.take(share)
        except Overloaded:
            return number
    return most


def test_a_servable_that_is_alone_may_have_all():
    shares = Shares(100)
    assert num_taken(shares, shares.share("a")) == 100


def test_a_servable_cannot_take_the_part_of_another():
    shares = Shares(100)
    hung, good = shares.share("hung"), shares.share("good")
    assert num_taken(shares, hung) == 75
    assert num_taken(shares, good) == 25


def test_a_servable_may_have_a_limit_of_its_own():
    shares = Shares(100)
    limited, other = shares.share("limited", 10), shares.share("other")
    assert num_taken(shares, limited) == 10
    with pytest.raises(Overloaded, match="servable limited are in flight, its max_requests is 10"):
        shares.take(limited)
    assert num_taken(shares, other) == 75


def test_requests_that_end_make_room():
    shares = Shares(4)
    share = shares.share("a")
    for _ in range(10):
        assert num_taken(shares, share) == 4
        for _ in range(4):
            shares.release(share)


def test_requests_of_workers_are_counted_and_never_refused():
    shares = Shares(4)
    share = shares.share("a")
    for _ in range(8):
        shares.count(share)
    assert num_taken(shares, share) == 0
    for _ in range(5):
        shares.release(share)
    assert num_taken(shares, share) == 1


def test_the_limit_may_change_while_requests_are_in_flight():
    shares = Shares(100)
    share = shares.share("a")
    assert num_taken(shares, share, 50) == 50
    shares.limit = 60
    assert num_taken(shares, share) == 10
    for _ in range(60):
        shares.release(share)
    assert num_taken(shares, share) == 60
