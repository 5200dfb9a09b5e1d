"""Cores of a worker: its part of the sets, or of the NUMA nodes."""

import os

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.worker import pinning


@pytest.fixture
def pinned(monkeypatch):
    """The sets that `pin` has chosen on a machine whose process may use the cores 0 to 5."""
    chosen = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(os, "listdir", lambda _: ["7"])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: chosen.append(set(cores)))
    return chosen


def test_workers_take_the_sets_in_turn(pinned):
    for number in range(3):
        pinning.pin("0-1;2,4", number)
    assert pinned == [{0, 1}, {2, 4}, {0, 1}]


def test_a_worker_without_sets_is_not_pinned(pinned):
    pinning.pin("", 0)
    assert pinned == []


def test_cores_that_the_process_may_not_use_stop_the_start(pinned):
    with pytest.raises(StartError, match="worker 1 would run on 5,6,7, but it may not use 6,7, on"):
        pinning.pin("0;5-7", 1)
    assert pinned == []


def write_nodes(directory, *lists):
    for number, text in enumerate(lists):
        (directory / f"node{number}").mkdir()
        (directory / f"node{number}" / "cpulist").write_text(text + "\n")


def test_a_numa_node_has_the_cores_that_are_allowed(tmp_path):
    write_nodes(tmp_path, "0-2,8", "", "3-5", "6-7")  # a node of memory alone, and one not allowed
    assert pinning.numa_nodes({1, 2, 3, 4}, tmp_path) == [{1, 2}, {3, 4}]


def test_a_system_without_nodes_is_a_single_node(tmp_path):
    assert pinning.numa_nodes({1, 2}, tmp_path) == [{1, 2}]
