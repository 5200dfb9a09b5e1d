"""How many workers are target, with answers computed by hand."""

import pytest

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.master.autoscaling import Scaler


def scaler(num_workers=1, **changes):
    options = {"min_workers": 1, "max_workers": 4, "requests_per_worker": 8, **changes}
    return Scaler(Deployment("d", "s", **options, scale_down_delay=60.0), num_workers, 0.0)


@pytest.mark.parametrize(
    ("num_requests", "target"), [(0, 1), (8, 1), (9, 2), (16, 2), (17, 3), (1000, 4)]
)
def test_the_number_of_workers_follows_requests_between_the_bounds(num_requests, target):
    assert scaler().target(num_requests, 1.0) == target


def test_more_workers_are_wanted_at_once_and_fewer_after_the_delay():
    target = scaler().target
    assert target(20, 1.0) == 3
    assert target(0, 2.0) == 3
    assert target(12, 30.0) == 2 + 1
    assert target(0, 61.0) == 3
    assert target(0, 61.5) == 2  # 20 are over 60 seconds ago, 12 are not
    assert target(0, 90.0) == 2
    assert target(0, 90.5) == 1


def test_a_load_that_comes_back_begins_the_delay_anew():
    target = scaler().target
    assert target(20, 1.0) == 3
    assert target(20, 50.0) == 3
    assert target(0, 100.0) == 3
    assert target(0, 110.5) == 1


def test_nothing_is_wanted_when_nobody_asks_if_the_bounds_allow_that():
    target = scaler(min_workers=0).target
    assert target(0, 1.0) == 1  # that which was started first
    assert target(0, 60.5) == 0
    assert target(1, 61.0) == 1


def test_the_memory_of_a_scaler_does_not_grow():
    one = scaler()
    for number in range(10_000):
        one.target(10_000 - number, number * 0.001)
    assert len(one._needs) <= 4
