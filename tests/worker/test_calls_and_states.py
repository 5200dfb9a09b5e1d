"""A worker whose stages are methods of other servables, and whose methods keep states."""

import numpy as np
import pytest

from mindspore_serving.errors import StageFailed
from mindspore_serving.ipc.messages import (
    CallReply,
    CallStep,
    EndSequences,
    Fault,
    PartReply,
    RequestPart,
    SequencePart,
    Work,
    WorkerCall,
    WorkerReady,
)
from mindspore_serving.wire import native
from tests.worker.test_worker import chunk, serve, value

__all__ = ["serve"]
BODY = """
def more(y):
    return y + 1

@register.register_method(output_names=["y"])
def called(x):
    y = register.add_stage(register.method("other.double", streams=True), x, outputs_count=1)
    return register.add_stage(more, y, outputs_count=1)

@register.register_method(output_names=["y", "z"])
def linked(x, extra):
    a, b = register.add_stage(register.method("other.split"), x, outputs_count=2)
    c, unused = register.add_stage(register.method("third.join"), b, extra, outputs_count=2)
    return register.add_stage(more, a, outputs_count=1), c

def inside(x):
    return sum(value for (value,) in register.method("other.double", version=2).call([[x], [x]]))

@register.register_method(output_names=["y"])
def calls(x):
    return register.add_stage(inside, x, outputs_count=1)

def add(x, total):
    if x < 0:
        raise ValueError("no")
    return total + x, total + x

@register.register_method(output_names=["y"])
def totals(x):
    total = register.declare_state("total", 1, "int64", initial=10)
    y, new = register.add_stage(add, x, total, outputs_count=2)
    total.update(new)
    return y

def halve(x, half):
    new = (half + x) / 2 if x[0] > 0 else np.array([True])
    return new, new

@register.register_method(output_names=["y"])
def halves(x):
    half = register.declare_state("half", 1, "float32")
    y, new = register.add_stage(halve, x, half, outputs_count=2)
    half.update(new)
    return y
"""


@pytest.fixture
def worker(serve, write):
    started = serve(write(BODY))
    assert isinstance(started.first, WorkerReady), started.first
    return started


def part(method, *rows, number=1, **fields):
    chunks = [chunk(*row) for row in rows]
    return RequestPart(number, method, "native", chunks, None, **fields)


def answer(call, *values, **fields):
    """Reply of another servable, which got `call`."""
    rows = [row if isinstance(row, tuple) else (row,) for row in values]
    return CallReply(PartReply(call.part.id, [chunk(*row) for row in rows], **fields))


def test_a_stage_calls_another_servable_once_for_each_part(worker):
    worker.say(Work([part("called", [3], [4]), part("called", [5], number=2)]))
    calls = [worker.receive(), worker.receive()]
    assert [(call.servable, call.part.method, call.parents) for call in calls] == [
        ("other", "double", [1]),
        ("other", "double", [2]),
    ]
    assert all(isinstance(call, WorkerCall) and not call.part.is_stream for call in calls)
    worker.say(answer(calls[1], 10), answer(calls[0], 6, 8))
    replies = worker.replies(2)
    assert [value(data) for data in replies[1].instances] == [7, 9]
    assert value(replies[2].instances[0]) == 11


def test_stages_that_follow_each_other_are_sent_in_a_message(worker):
    worker.say(Work([part("linked", [3, 5], [4, 6])]))
    call = worker.receive()
    assert [native.decode_values(each) for each in call.part.chunks] == [(3, 5), (4, 6)]
    split, join = call.steps
    assert split == CallStep("other", 0, "split", [0], 2)
    assert join == CallStep("third", 0, "join", [3, 1], 2)
    assert call.returns == [2, 4]  # of the outputs 2 to 5
    fault = Fault(StageFailed("").code, "gone")
    reply = PartReply(call.part.id, [chunk(10, 30), b""], [None, fault])
    worker.say(CallReply(reply, [0, 1]))
    answered = worker.replies(1)[1]
    assert native.decode_values(answered.instances[0]) == (11, 30)
    assert answered.faults[0] is None
    assert "'third.join' Failed, method: 'linked', stage 2 of 3" in answered.faults[1].text


def test_stages_of_a_sampled_request_are_sent_in_turn(worker):
    traced = f"00-{1:032x}-{2:016x}-01"
    worker.say(Work([part("linked", [3, 5], traceparent=traced)]))
    call = worker.receive()
    assert (call.servable, call.steps) == ("other", [])
    worker.say(answer(call, (10, 20)))
    call = worker.receive()
    assert (call.servable, call.steps) == ("third", [])
    assert native.decode_values(call.part.chunks[0]) == (20, 5)
    worker.say(answer(call, (30, 40)))
    reply = worker.replies(1)[1]
    assert native.decode_values(reply.instances[0]) == (11, 30)
    assert {"Method 'other.split'", "Method 'third.join'"} < {span.name for span in reply.spans}


def test_pieces_of_another_servable_become_pieces_of_the_answer(worker):
    worker.say(Work([part("called", [3], is_stream=True)]))
    call = worker.receive()
    assert call.part.is_stream
    worker.say(answer(call, 1, is_last=False))
    (first,) = worker.receive().replies
    assert (value(first.instances[0]), first.is_last) == (2, False)
    worker.say(answer(call, 5))
    pieces = [*worker.receive().replies]
    while not pieces[-1].is_last:
        pieces += worker.receive().replies
    assert [value(data) for piece in pieces for data in piece.instances] == [6]


def test_a_stream_that_fails_elsewhere_fails_the_part(worker):
    worker.say(Work([part("called", [3], is_stream=True)]))
    call = worker.receive()
    fault = Fault(StageFailed("").code, "gone")
    worker.say(CallReply(PartReply(call.part.id, [], rejected=fault)))
    assert "gone" in worker.replies(1)[1].rejected.text


def test_a_call_from_a_function_waits_for_its_reply(worker):
    worker.say(Work([part("calls", [3])]))
    call = worker.receive()
    assert (call.version, call.parents, len(call.part.chunks)) == (2, [1], 2)
    worker.say(answer(call, 6, 7))
    assert value(worker.replies(1)[1].instances[0]) == 13


def total(worker, x, sequence):
    """The reply to a request of a sequence."""
    worker.say(Work([part("totals", [[x]], sequence=sequence)]))
    return worker.replies(1)[1]


def test_states_go_from_request_to_request_until_the_end(worker):
    start, step, end = SequencePart(1, is_start=True), SequencePart(1), SequencePart(1, is_end=True)
    assert value(total(worker, 1, start).instances[0]) == [11]
    assert value(total(worker, 2, SequencePart(2, is_start=True)).instances[0]) == [12]
    assert value(total(worker, 5, step).instances[0]) == [16]
    assert value(total(worker, 1, end).instances[0]) == [17]
    assert value(total(worker, 1, step).instances[0]) == [11]


def test_a_state_is_cast_where_only_a_rounding_is_lost(worker):
    """Python's numbers are float64 and int64, whatever the state is declared as."""

    def half(x, sequence):
        worker.say(Work([part("halves", [[x]], sequence=sequence)]))
        return worker.replies(1)[1]

    assert value(half(1.0, SequencePart(1, is_start=True)).instances[0]) == [0.5]
    assert value(half(2.0, SequencePart(1)).instances[0]) == [1.25]
    assert "became bool [1]" in half(-1.0, SequencePart(1)).faults[0].text


def test_instances_of_a_request_are_steps_in_order(worker):
    sequence = SequencePart(1, is_start=True)
    worker.say(Work([part("totals", [[1]], [[2]], [[3]], sequence=sequence)]))
    assert [value(data) for data in worker.replies(1)[1].instances] == [[11], [13], [16]]


def test_a_failed_request_does_not_change_the_state(worker):
    total(worker, 1, SequencePart(1, is_start=True))
    assert "no" in total(worker, -1, SequencePart(1)).faults[0].text
    assert value(total(worker, 1, SequencePart(1)).instances[0]) == [12]


def test_a_kept_state_continues_in_another_worker(worker):
    reply = total(worker, 1, SequencePart(1, is_start=True, is_kept=True))
    (state,) = native.decode_values(bytearray(reply.state))
    assert state.tolist() == [11]
    moved = native.encode_values([np.array([100], np.int64)])
    assert value(total(worker, 1, SequencePart(7, state=moved)).instances[0]) == [101]


def test_the_state_of_an_ended_sequence_is_dropped(worker):
    total(worker, 1, SequencePart(1, is_start=True))
    worker.say(EndSequences("totals", [1, 99]))
    assert value(total(worker, 2, SequencePart(1)).instances[0]) == [12]
