"""Placement of ranks on machines: as many on each, stages whole, fewer after a loss."""

import pytest

from mindspore_serving.cluster.base import Needs
from mindspore_serving.cluster.nodes import Machine
from mindspore_serving.cluster.rank_machines import choose_machines, why_too_few


def placed(slots, needs):
    """Ranks on machines a, b, ... with so many slots, and the number of stages."""
    machines = [Machine(name, count) for name, count in zip("abcd", slots, strict=False)]
    plan = choose_machines(needs, machines, 0.0)
    if plan is None:
        return None
    return {machine.name: count for machine, count in plan.machines}, plan.num_stages


def needs(width=1, stages=1, machines=2, **more):
    return Needs("m", slots=width * stages, num_stages=stages, machines=machines, **more)


@pytest.mark.parametrize(
    ("slots", "needed", "expected"),
    [
        ((1, 1), needs(stages=2), ({"a": 1, "b": 1}, 2)),
        ((8, 8, 8), needs(stages=2), ({"a": 1, "b": 1}, 2)),
        ((8, 8, 8), needs(stages=3, machines=3), ({"a": 1, "b": 1, "c": 1}, 3)),
        ((4, 4), needs(stages=3), ({"a": 2, "b": 1}, 3)),
        ((2, 2), needs(2, 2), ({"a": 2, "b": 2}, 2)),
        ((1, 3), needs(2, 2), None),  # a stage is on one machine
        ((1, 3), needs(stages=4), ({"a": 1, "b": 3}, 4)),
        ((1, 1, 4, 4), needs(2, 2), ({"c": 2, "d": 2}, 2)),
        ((1, 1), needs(2, 1), ({"a": 1, "b": 1}, 1)),  # ranks of a stage over machines
        ((4,), needs(stages=2), None),  # another machine may join
        ((4,), needs(stages=2, takes_fewer=True), ({"a": 2}, 2)),
        ((1,), needs(stages=2, takes_fewer=True), ({"a": 1}, 1)),
        ((3,), needs(2, 2, takes_fewer=True), ({"a": 2}, 1)),
        ((1,), needs(2, 1, takes_fewer=True), None),  # the ranks of a stage are needed
        ((), needs(stages=2, takes_fewer=True), None),
    ],
)
def test_ranks_are_spread_over_machines_as_far_as_slots_allow(slots, needed, expected):
    assert placed(slots, needed) == expected


def test_the_machine_of_the_server_has_the_first_ranks():
    machines = [Machine("", 1), Machine("a", 4)]
    machines[0].workers[object()] = Needs("m", slots=0)  # so that it is the second choice
    plan = choose_machines(needs(stages=2), machines, 0.0)
    assert plan is not None
    assert [machine.name for machine, _ in plan.machines] == ["", "a"]


def test_a_machine_that_cannot_take_ranks_is_named():
    machines = [Machine("a", 1, is_leaving=True), Machine("b", 1)]
    problem = why_too_few(needs(stages=2), machines)
    assert problem == "its 2 ranks need free slots on 2 machines; not on a: it is leaving"
