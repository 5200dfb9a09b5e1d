"""The compiled interpreter of plans: all operations of a pass, without Python between them."""

from typing import NamedTuple

from mindspore_serving.llm.runtimes.native import attention, elementwise, experts, lora
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.attention_tasks import (
    AttentionOperation,
    AttentionTasks,
    attend_all,
)
from mindspore_serving.llm.runtimes.native.codes import Column, OpCode
from mindspore_serving.llm.runtimes.native.compiling import compiled, entry
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    OUT,
    OUT_STRIDE,
    P2,
    P6,
    WIDTH,
    A,
    Floats,
    Integers,
)
from mindspore_serving.llm.runtimes.native.memory import call_kernel
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put
from mindspore_serving.llm.runtimes.native.products import Team, multiply, multiply_experts
from mindspore_serving.llm.runtimes.native.states import execute_state

_CODE, _PER_TOKEN = int(Column.CODE), int(Column.PER_TOKEN)
_PRODUCT, _RMS_NORM, _LAYER_NORM, _ROPE_TABLES, _ROPE, _ATTENTION = map(int, list(OpCode)[:6])
_UNARY, _BINARY, _GATHER, _COPY_HEADS, _QUERY_SCALE, _REDUCE = map(int, list(OpCode)[6:12])
_SCALING, _BROADCAST, _ROUTE, _EXPERT_PRODUCT, _EXPERT_BIAS = map(int, list(OpCode)[12:17])
_ADAPT, _STATE, _EXPERT_ORDER, _EXPERT_GATHER, _EXPERT_SUM = map(int, list(OpCode)[17:])


class PlanArrays(NamedTuple):
    """Arrays of a plan, caches of layers and states that it names by number, and the threads."""

    operations: Integers
    numbers: Floats
    layers: Integers
    states: Integers
    team: Team
    attention: AttentionTasks


@entry
def execute(planned: PlanArrays, memory: Memory, tokens: int) -> None:
    """Compute a pass over `tokens` rows; logits are those of the rows `memory.gathered`.

    Everything is in range: `PlanRecorder` checks offsets and shapes, the runner tokens and blocks.
    """
    for index in range(len(planned.operations)):
        op, numbers = planned.operations[index], planned.numbers[index]
        rows = op[_PER_TOKEN] * tokens or len(memory.gathered)
        code = op[_CODE]
        if rows == 0:
            continue  # a pass without logits; a team would wait for a record of no chunks
        if code == _PRODUCT:
            multiply(planned.team, op, rows)
        elif code == _EXPERT_PRODUCT:
            multiply_experts(planned.team, memory.arena, op, rows)
        elif code == _ATTENTION:
            layer = planned.layers[op[P2]]
            attention.write(memory, op, rows, layer)
            operation = AttentionOperation(op, numbers, layer)
            attend_all(planned.team, planned.attention, memory, operation, rows)
        elif code in (_EXPERT_ORDER, _EXPERT_GATHER, _EXPERT_SUM):
            call_kernel(op[P6], op.ctypes.data, rows)
        elif code == _ADAPT:
            lora.adapt(memory, op, rows)
        elif code == _STATE:
            execute_state(planned.states[op[P6]], memory, op, numbers, rows)
        elif code in (_UNARY, _BINARY, _SCALING, _BROADCAST, _REDUCE, _RMS_NORM, _ROPE):
            _execute_rows(memory.arena, op, numbers, rows)
        else:
            _execute_special(memory, op, numbers, rows)


@compiled
def _execute_rows(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    code = op[_CODE]
    if code == _BINARY:
        elementwise.binary(arena, op, numbers, rows)
    elif code == _RMS_NORM:
        elementwise.rms_norm(arena, op, numbers, rows)
    elif code == _ROPE:
        elementwise.rope(arena, op, rows)
    elif code == _UNARY:
        elementwise.unary(arena, op, rows)
    elif code == _SCALING:
        elementwise.scaling(arena, op, numbers, rows)
    elif code == _BROADCAST:
        elementwise.broadcast(arena, op, rows)
    else:
        elementwise.reduce(arena, op, rows)


@compiled
def _execute_special(memory: Memory, op: Integers, numbers: Floats, rows: int) -> None:
    arena, code = memory.arena, op[_CODE]
    if code == _GATHER:
        for row in range(rows):
            at = op[A] + memory.gathered[row] * op[A_STRIDE]
            to = op[OUT] + row * op[OUT_STRIDE]
            for i in range(op[WIDTH]):
                put(arena, to + i, get(arena, at + i))
    elif code == _ROPE_TABLES:
        elementwise.rope_tables(arena, op, numbers, rows, memory.step)
    elif code == _QUERY_SCALE:
        elementwise.query_scale(arena, op, numbers, rows, memory.step)
    elif code == _COPY_HEADS:
        elementwise.copy_heads(arena, op, rows)
    elif code == _LAYER_NORM:
        elementwise.layer_norm(arena, op, numbers, rows)
    elif code == _ROUTE:
        experts.route(arena, op, numbers, rows)
    elif code == _EXPERT_BIAS:
        experts.add_bias(arena, op, rows)
