"""Measuring of two runners of one model, between the steps of its engine."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from mindspore_serving.llm.runtimes.combined.choice import LARGEST, StepTimes
from mindspore_serving.llm.step import Row, Runner, Step

SIZES = (1, 2, 3, 4, 6, 8, 16, 32, LARGEST)  # tokens of steps
CONTEXT = 128  # tokens of each sequence
ROUNDS = 4  # the first compiles kernels, and is not counted
SECONDS = 6.0  # after which no further size is measured
PAUSE = 0.001  # seconds between two steps, in which the engine begins one of its own


def measure(
    runners: tuple[Runner, Runner],
    block: int,
    max_tokens: int,
    alone: AbstractContextManager[object],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StepTimes]:
    """Iterate over the shortest times of steps of each size, until the second is twice faster.

    `block` is of no sequence, and is overwritten.  `alone` is held while a step is computed, so
    that the engine computes none.
    """
    context = min(CONTEXT, runners[0].max_model_len)
    blocks = [block] * -(-context // runners[0].block_size)
    began, num_lost = clock(), 0
    for size in SIZES:
        if size > max_tokens or num_lost == 2 or clock() - began > SECONDS:
            return
        step = Step(tuple(Row([0], context - 1, blocks, 1) for _ in range(size)))
        spent: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for runner, times in zip(runners, spent, strict=True):
                with alone:
                    start = clock()
                    runner.run(step)
                    times.append(clock() - start)
                time.sleep(PAUSE)
        shortest = StepTimes(size, min(spent[0][1:]), min(spent[1][1:]))
        num_lost = num_lost + 1 if shortest.openvino < shortest.native else 0
        yield shortest
