"""When a worker counts as silent and as dead, and what it runs as overdue."""

import pytest

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.ipc.status import STAGES, STEPS, Running
from mindspore_serving.master.liveness import HeartbeatMonitor, find_overdue, interval


def states(monitor, *looks):
    """What the monitor is after each look of (count, elapsed): lives, silent or dead."""
    found = []
    for count, elapsed in looks:
        monitor.update(count, elapsed)
        found.append("dead" if monitor.is_dead else "silent" if monitor.is_silent else "lives")
    return found


def test_a_worker_whose_heartbeats_are_counted_lives():
    looks = [(count, 9.0) for count in range(1, 6)]
    assert states(HeartbeatMonitor(10.0), *looks) == ["lives"] * 5


def test_a_worker_without_heartbeats_is_silent_then_dead():
    looks = [(7, 5.0)] * 8
    assert states(HeartbeatMonitor(10.0), *looks) == [
        *["lives"] * 2,
        *["silent"] * 4,
        *["dead"] * 2,
    ]


def test_a_heartbeat_makes_a_silent_worker_live_again():
    monitor = HeartbeatMonitor(10.0)
    assert states(monitor, (1, 1.0), (1, 20.0), (2, 5.0), (2, 5.0)) == [
        "lives",
        "silent",
        "lives",
        "lives",
    ]


def test_without_a_timeout_a_worker_is_always_alive():
    assert states(HeartbeatMonitor(0.0), (1, 100.0), (1, 1e6)) == ["lives", "lives"]


def test_a_worker_whose_heartbeats_cannot_be_seen_lives():
    assert states(HeartbeatMonitor(10.0), (None, 100.0), (None, 1e6)) == ["lives", "lives"]


@pytest.mark.parametrize(
    ("lane", "since", "text"),
    [
        (STAGES, 94.0, "stage 3 ran for over 5 s (stage_timeout)"),
        (STAGES, 96.0, ""),
        (STEPS, 69.0, "a step of the language model ran for over 30 s (step_timeout)"),
        (STEPS, 71.0, ""),
    ],
)
def test_a_stage_that_runs_for_longer_than_its_timeout_is_overdue(lane, since, text):
    deployment = Deployment("d", "s", stage_timeout=5.0, step_timeout=30.0)
    running = Running(lane, since, 2, frozenset({1}))
    overdue = find_overdue([running], deployment, 100.0)
    assert overdue == ((running, text) if text else None)


def test_without_a_timeout_nothing_is_overdue():
    deployment = Deployment("d", "s", stage_timeout=0.0, step_timeout=0.0)
    running = [Running(lane, 0.0, 0, None) for lane in (STAGES, STEPS)]
    assert find_overdue(running, deployment, 1e9) is None


def test_a_worker_is_looked_at_often_enough_for_its_shortest_timeout():
    assert interval(Deployment("d", "s")) == 1.0
    assert interval(Deployment("d", "s", heartbeat_timeout=0.0, step_timeout=0.0)) == 1.0
    assert interval(Deployment("d", "s", heartbeat_timeout=2.0)) == 0.5
    assert interval(Deployment("d", "s", stage_timeout=0.4)) == 0.1
