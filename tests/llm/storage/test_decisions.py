"""Decisions about stored blocks: compression, limits, pauses and costs, without a store."""

import os

import pytest

pytest.importorskip("zstandard")

from mindspore_serving.llm.engine.block_cost import BlockCost
from mindspore_serving.llm.storage.block_values import Compression
from mindspore_serving.stores.bounds import StoreBounds
from mindspore_serving.stores.circuit import FIRST_PAUSE, MAX_PAUSE, Circuit


class Clock:
    """Time that goes on by `step` with each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


HALF = memoryview(bytes(5000) + os.urandom(5000))  # of which compression saves about 5000 bytes


@pytest.mark.parametrize(("wire", "compresses"), [(4000.0, True), (6000.0, False)])
def test_blocks_are_compressed_if_that_is_faster_than_the_wire(wire, compresses):
    compression = Compression("auto", Clock(step=1.0))  # a second for about 5000 bytes less
    compression.observe(int(wire), 1.0)
    for _ in range(200):
        assert (compression.compress(HALF) is not None) == compresses


def test_compression_is_measured_again_when_the_wire_changes():
    compression = Compression("auto", Clock(step=1.0))
    assert compression.compress(HALF) is None  # the wire is not known yet
    compression.observe(4000, 1.0)
    assert compression.compress(HALF) is not None
    for _ in range(50):
        compression.observe(60_000, 1.0)
    assert compression.compress(HALF) is None


def test_blocks_that_do_not_get_smaller_are_sent_as_they_are():
    noise = memoryview(os.urandom(10_000))
    assert Compression("zstd").compress(noise) is None
    assert Compression("none").compress(HALF) is None
    assert len(Compression("zstd").compress(HALF)) < 6000


def test_bounds_remove_the_least_recently_used_first():
    bounds = StoreBounds(1000, 100)
    assert bounds.is_due
    blocks = [(time, f"{time}", 100) for time in (5, 3, 9, 1, 7, 2, 4, 6, 8, 10)]
    assert bounds.select(blocks, now=11) == ["1", "2"]
    assert not bounds.is_due
    assert bounds.select(blocks[:4], now=11) == []


def test_bounds_remove_blocks_that_are_too_old():
    bounds = StoreBounds(1000, 100, max_seconds=2.0)
    second = 10**9
    blocks = [(number * second, number, 100) for number in range(5)]
    assert bounds.select(blocks, now=5 * second) == [0, 1, 2]
    assert StoreBounds(1000, 100).select(blocks, now=10**18) == []


def test_pauses_grow_with_failures_and_end_with_a_success():
    clock = Clock()
    circuit = Circuit(clock)
    pauses = []
    for _ in range(8):
        assert not circuit.is_open
        circuit.fail()
        circuit.fail()  # under way at the same time
        began = clock.now
        while circuit.is_open:
            clock.now += 0.25
        pauses.append(clock.now - began)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == MAX_PAUSE
    circuit.succeed()
    circuit.fail()
    clock.now += FIRST_PAUSE
    assert not circuit.is_open


def test_the_cost_of_a_block_is_learned_from_steps_that_complete_several():
    cost = BlockCost()
    cost.begin(10.0)
    cost.add(1, 19.0)  # a step of single tokens
    cost.begin(20.0)
    assert cost.seconds == 0
    cost.add(3, 22.0)
    cost.add(1, 22.0)
    cost.begin(30.0)
    assert cost.seconds == 0.5
