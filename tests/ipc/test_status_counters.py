"""What a worker uses and how large its batches are, through shared memory and to other machines."""

import os

import pytest

from mindspore_serving.ipc import status


@pytest.fixture
def memory():
    return memoryview(bytearray(status.SIZE))


def test_a_process_writes_its_resource_usage(memory):
    assert status.usage(memory) == status.ProcessUsage()
    status.set_usage(memory)
    found = status.usage(memory)
    ticks = 2 * 0.01  # the precision of `os.times`
    assert 0 < found.cpu_seconds <= sum(os.times()[:2]) + ticks
    assert found.resident_bytes > 1 << 20
    assert found.num_open_files >= 3


def test_batches_are_counted_by_size(memory):
    sizes = status.BatchSizes(memory)
    for size in (1, 2, 3, 4, 5000):
        sizes.observe(size)
    found = status.batch_sizes(memory)
    counts = dict(found.cumulative())
    assert [counts[one] for one in ("1.0", "2.0", "4.0", "1024.0", "+Inf")] == [1, 2, 4, 4, 5]
    assert found.total == 5010


def test_counters_are_equal_on_another_machine(memory):
    status.BatchSizes(memory).observe(8)
    status.set_usage(memory)
    other = memoryview(bytearray(status.SIZE))
    status.set_counters(other, status.counters(memory))
    assert status.usage(other) == status.usage(memory)
    assert status.batch_sizes(other).total == 8


@pytest.mark.parametrize("wrong", [[], [1], [-1] * 16, [1 << 63] * 16, [1] * 17])
def test_invalid_counters_are_refused_and_change_nothing(memory, wrong):
    assert len(status.counters(memory)) == 16
    with pytest.raises(ValueError, match="counters, expected"):
        status.set_counters(memory, wrong)
    assert not any(memory)


def test_without_shared_memory_counters_are_zero():
    nothing = memoryview(b"")
    assert status.usage(nothing) == status.ProcessUsage()
    assert status.batch_sizes(nothing).count == 0
    status.set_usage(nothing)
    status.BatchSizes(nothing).observe(1)
