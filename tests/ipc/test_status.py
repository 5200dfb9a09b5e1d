"""What a worker says of itself in shared memory, as its master reads it."""

import os
import time
from contextlib import closing

import pytest

from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc import status
from mindspore_serving.ipc.arena import Arena, ArenaView
from mindspore_serving.ipc.status import MAX_IDS, SIZE, STAGES, STEPS, Lane, beat, beats, read


@pytest.fixture
def memory():
    return memoryview(bytearray(SIZE))


def test_nothing_runs_at_first(memory):
    assert list(read(memory)) == []


@pytest.mark.parametrize("ids", [[7], [3, 1, 1 << 40], list(range(MAX_IDS))], ids=len)
def test_the_running_stage_is_read_with_its_part_ids(memory, ids):
    before = time.monotonic()
    Lane(memory, STAGES).begin(2, ids)
    (running,) = read(memory)
    assert (running.lane, running.stage, running.ids) == (STAGES, 2, frozenset(ids))
    assert before <= running.since <= time.monotonic()


def test_more_parts_than_a_lane_holds_are_read_as_any(memory):
    Lane(memory, STAGES).begin(0, range(MAX_IDS + 1))
    (running,) = read(memory)
    assert running.ids is None


def test_a_stage_that_has_ended_is_not_read(memory):
    lane = Lane(memory, STAGES)
    lane.begin(0, [1])
    lane.end()
    assert list(read(memory)) == []


def test_a_batch_overwrites_a_larger_batch_before_completely(memory):
    lane = Lane(memory, STAGES)
    lane.begin(0, [1, 2, 3])
    lane.end()
    lane.begin(1, [4])
    assert [running.ids for running in read(memory)] == [{4}]


def test_each_thread_has_a_lane(memory):
    Lane(memory, STAGES).begin(0, [1])
    Lane(memory, STEPS).begin(0, [2])
    assert [(running.lane, running.ids) for running in read(memory)] == [
        (STAGES, {1}),
        (STEPS, {2}),
    ]


def test_a_stage_without_ids_may_run_any_part(memory):
    Lane(memory, STEPS).begin()
    (running,) = read(memory)
    assert running.ids is None
    assert running.has(7)


def test_heartbeats_are_counted(memory):
    assert beats(memory) == 0
    for _ in range(3):
        beat(memory)
    Lane(memory, STAGES).begin(0, list(range(MAX_IDS)))
    assert beats(memory) == 3


def test_nothing_is_known_of_a_worker_without_shared_memory():
    empty = memoryview(bytearray())
    assert beats(empty) is None
    assert list(read(empty)) == []


def test_the_status_in_an_arena_is_not_overwritten_by_payloads():
    fd = arenas.create()
    with closing(Arena(fd, status.SIZE)) as arena, closing(ArenaView(fd, status.SIZE)) as view:
        os.close(fd)
        Lane(arena.reserved, STAGES).begin(0, [1])
        payload = arena.put(b"\xff" * 100_000)
        arena.free(payload.offset)
        arena.trim()
        arena.trim()
        assert [running.ids for running in read(view.reserved)] == [{1}]
