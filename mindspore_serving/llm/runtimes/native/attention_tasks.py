"""Attention on all threads: a chunk of the team is a query head of a token."""

from typing import NamedTuple

import numpy as np

from mindspore_serving.llm.runtimes.native.attention import (
    HEADS,
    AttentionMemory,
    Memory,
    attend,
)
from mindspore_serving.llm.runtimes.native.codes import (
    NUM_COLUMNS,
    NUM_NUMBERS,
    StepColumn,
)
from mindspore_serving.llm.runtimes.native.compiling import compiled, entry
from mindspore_serving.llm.runtimes.native.elementwise import POSITION, WIDTH, Floats, Integers
from mindspore_serving.llm.runtimes.native.kernels.team import RECORD_BYTES, MemberArgument
from mindspore_serving.llm.runtimes.native.memory import (
    call_kernel,
    exchange_i64,
    float32_array,
    int64_array,
    store_i64,
)
from mindspore_serving.llm.runtimes.native.products import Team

LAYER_COLUMNS = 7  # of a layer's row of `PagedCache`
FEW = 512  # scores of a pass that one thread computes sooner than others wake up
_PLAN, _STEP_COLUMNS = MemberArgument.PLAN.value, len(StepColumn)
# Numbers of a task: addresses, the rows and the length of the table of blocks, and scratch memory.
_OP, _NUMBERS, _LAYER, _ARENA, _STEP, _ROWS, _BLOCKS, _NUM_BLOCKS = range(8)
_SCORES, _SCORES_BYTES, _SLOTS, _NUM_SLOTS = range(8, 12)
_NUM_ARGUMENTS = 12


class AttentionTasks(NamedTuple):
    """Record of a plan for the team, arguments of its kernel, and what they refer to."""

    record: Integers
    arguments: Integers
    scores: Floats
    slots: Integers  # 1: a task uses these scores

    @classmethod
    def of(cls, num_tokens: int, num_threads: int) -> "AttentionTasks":
        """Return tasks for sequences of `num_tokens`; the first call compiles."""
        scores = np.zeros((num_threads, num_tokens), np.float32)
        slots, arguments = np.zeros(num_threads, np.int64), np.zeros(_NUM_ARGUMENTS, np.int64)
        arguments[_SCORES], arguments[_SCORES_BYTES] = scores.ctypes.data, scores.strides[0]
        arguments[_SLOTS], arguments[_NUM_SLOTS] = slots.ctypes.data, num_threads
        record = np.zeros(2 * RECORD_BYTES // 8, np.int64)
        record[0] = _run_task.address(0, 0)
        record[2] = arguments.ctypes.data
        return cls(record, arguments, scores, slots)


class AttentionOperation(NamedTuple):
    """Row of a plan, its numbers, and the row of its layer."""

    op: Integers
    numbers: Floats
    layer: Integers


@entry
def _run_task(arguments: int, task: int) -> None:
    """Compute a task in scratch memory that no other uses: there is as much as threads."""
    numbers = int64_array(arguments, 1, _NUM_ARGUMENTS)[0]
    slot = 0
    while not exchange_i64(numbers[_SLOTS] + 8 * slot, 0, 1):
        slot = (slot + 1) % numbers[_NUM_SLOTS]
    memory = AttentionMemory(
        numbers[_ARENA],
        numbers[_SCORES] + slot * numbers[_SCORES_BYTES],
        int64_array(numbers[_STEP], numbers[_ROWS], _STEP_COLUMNS),
        int64_array(numbers[_BLOCKS], 1, numbers[_NUM_BLOCKS])[0],
    )
    op = int64_array(numbers[_OP], 1, NUM_COLUMNS)[0]
    factors = float32_array(numbers[_NUMBERS], 1, NUM_NUMBERS)[0]
    layer = int64_array(numbers[_LAYER], 1, LAYER_COLUMNS)[0]
    attend(memory, op, factors, layer, task)
    exchange_i64(numbers[_SLOTS] + 8 * slot, 1, 0)


@compiled
def attend_all(
    team: Team, tasks: AttentionTasks, memory: Memory, operation: AttentionOperation, rows: int
) -> None:
    """Compute all rows and heads, by this thread alone if there is little to do."""
    op, numbers, layer = operation
    arguments, count = tasks.arguments, rows * layer[HEADS] * op[WIDTH]
    arguments[_OP], arguments[_NUMBERS] = op.ctypes.data, numbers.ctypes.data
    arguments[_LAYER], arguments[_ARENA] = layer.ctypes.data, memory.arena
    arguments[_STEP], arguments[_ROWS] = memory.step.ctypes.data, len(memory.step)
    arguments[_BLOCKS], arguments[_NUM_BLOCKS] = memory.blocks.ctypes.data, len(memory.blocks)
    positions = 0
    for row in range(rows):
        positions += memory.step[row, POSITION] + 1
    if positions * layer[HEADS] * op[WIDTH] <= FEW:
        for task in range(count):
            call_kernel(tasks.record[0], tasks.record[2], task)
    else:
        tasks.record[1] = count
        store_i64(team.arguments, _PLAN, tasks.record.ctypes.data)
        call_kernel(team.run, team.arguments, 0)
