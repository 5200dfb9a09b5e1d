"""Streams in the executor: pieces in order, one failure, cancellation, turns with other work."""

import sys

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.errors import StageFailed
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import PreparedMethod, PreparedStage, ReorderBuffer, RunningPart


class TextCodec:
    @staticmethod
    def encode(outputs):
        return str(outputs["y"]).encode()


class Parked(PreparedStage):
    """A stage elsewhere: keeps the jobs until the test answers."""

    def __init__(self, inputs):
        super().__init__(inputs, 8, lambda rows: [])
        self.jobs = []
        self.start = lambda _, jobs: self.jobs.extend(jobs)


def stepped(function):
    return lambda inputs: PreparedStage(inputs, 8, lambda rows: [(function(*row),) for row in rows])


def yielding(function):
    def make(inputs):
        step = PreparedStage(inputs, 8, lambda rows: [([*function(*row)],) for row in rows])
        step.iterate = lambda job: ((value,) for value in function(*job.arguments(step)))
        return step

    return make


def machine(*steps):
    """An executor with one method "m" of one input, and its steps."""
    stages = tuple(
        Stage(StageKind.FUNCTION, f"f{i}", (i,), (i + 1,), f"Function 'f{i}'", streams=i == 0)
        for i in range(len(steps))
    )
    program = PreparedMethod(Method("m", ("x",), ("y",), stages, (len(steps),)), "method m")
    program.stages += [make((i,)) for i, make in enumerate(steps)]
    return Executor({"m": program}), program.stages


def stream_of(executor, value, item_id=1):
    item = RunningPart(item_id, executor.programs["m"], TextCodec, None)
    item.is_stream = True
    executor.add(item, [{"x": value}])
    return item


def run(executor, limit=1000):
    while executor.has_work and limit:
        executor.run_next(0.0)
        limit -= 1


def test_pieces_leave_in_the_order_in_which_they_began():
    stream = ReorderBuffer()
    stream.num_begun = 4
    assert [stream.put(number, b"%d" % number) for number in (2, 1, 0, 3)] == [
        [],
        [],
        [b"0", b"1", b"2"],
        [b"3"],
    ]
    assert not stream.is_done
    stream.is_closed = True
    assert stream.is_done


def test_a_stream_is_done_only_when_closed_and_emptied():
    stream = ReorderBuffer()
    stream.num_begun, stream.is_closed = 2, True
    stream.put(1, b"later")
    assert not stream.is_done
    stream.put(0, b"first")
    assert stream.is_done


def test_an_empty_stream_ends_without_pieces():
    executor, _ = machine(yielding(range))
    item = stream_of(executor, 0)
    run(executor)
    assert executor.finished == [item]
    assert (item.outputs, item.faults) == ([], None)


def test_later_stages_that_answer_out_of_order_do_not_change_the_order():
    executor, steps = machine(yielding(range), Parked)
    item = stream_of(executor, 3)
    run(executor)
    jobs = steps[1].jobs
    assert len(jobs) == 3
    for job in reversed(jobs):
        assert not executor.finished
        executor.resume([job], [(f"<{job.values[1]}>",)])
    assert item.outputs == [b"<0>", b"<1>", b"<2>"]
    assert executor.finished == [item]


def test_a_piece_that_fails_ends_the_stream_and_closes_its_generator():
    closed = []

    def endless(_):
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.append(True)

    def check(number):
        if number == 2:
            raise ValueError("two is not wanted")
        return number

    executor, _ = machine(yielding(endless), stepped(check))
    item = stream_of(executor, 0)
    run(executor)
    assert executor.finished == [item]
    assert "two is not wanted" in str(item.faults[0])
    assert closed == [True]
    assert not executor.has_work


def test_cancelling_closes_the_generator_and_answers_once():
    closed = []

    def endless(_):
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    executor, _ = machine(yielding(endless))
    item = stream_of(executor, 0)
    run(executor, limit=20)
    assert executor.has_work
    item.is_cancelled = True
    run(executor)
    assert closed == [True]
    assert executor.finished == [item]
    assert "the request was cancelled" in str(item.faults[0])


def test_a_generator_that_raises_when_closed_fails_no_other_stream():
    def stubborn(value):
        try:
            while True:
                yield (1,)
        finally:
            if value == 0:
                sys.exit("not yet")

    executor, (stage,) = machine(yielding(stubborn))
    stage.iterate = lambda job: stubborn(*job.arguments(stage))
    cancelled, other = stream_of(executor, 0), stream_of(executor, 1)
    run(executor, limit=20)
    cancelled.is_cancelled = True
    run(executor, limit=20)
    assert executor.finished == [cancelled]
    assert other.faults is None


def test_a_stage_elsewhere_that_fails_after_pieces_fails_the_stream_once():
    executor, (parked,) = machine(Parked)
    item = stream_of(executor, 0)
    run(executor)
    (job,) = parked.jobs
    executor.emit(job, ("a",))
    executor.resume([job], [StageFailed("the model is gone")])
    executor.resume([job], [StageFailed("again")])
    executor.emit(job, ("late",))
    executor.end(job)
    assert executor.finished == [item]
    assert item.outputs == [b"a"]
    assert "the model is gone" in str(item.faults[0])


def test_other_requests_have_their_turn_beside_an_endless_stream():
    executor, _ = machine(yielding(lambda x: iter(int, 1) if x else range(1)))
    stream_of(executor, 1)
    other = stream_of(executor, 0, item_id=2)
    run(executor, limit=20)
    assert executor.finished == [other]
    assert executor.has_work


def test_a_method_without_a_streaming_stage_gives_a_single_piece():
    executor, _ = machine(stepped(lambda x: x * 2))
    item = stream_of(executor, 4)
    run(executor)
    assert item.outputs == [b"8"]
    assert executor.finished == [item]
    assert list(executor.unsent) == [1]
