"""The order in which stages run, and what fails with what; stages are plain functions here."""

import sys

import pytest

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, StageFailed
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import PreparedMethod, PreparedStage, RunningPart


class TextCodec:
    """Outputs as "name=value"."""

    @staticmethod
    def encode(outputs):
        return " ".join(f"{name}={value}" for name, value in outputs.items()).encode()


class RefusingCodec:
    @staticmethod
    def encode(outputs):
        if outputs["y"] == 2:
            raise StageFailed("2 cannot be sent")
        return b"sent"


def one_input(function):
    return lambda rows: function([value for (value,) in rows])


def program(name, *stages):
    """A method of one input and one output; each stage is (limit, function of one value)."""
    parts = [
        Stage(StageKind.FUNCTION, f"s.{name}", (index,), (index + 1,), f"Function '{name}{index}'")
        for index in range(len(stages))
    ]
    made = PreparedMethod(
        Method(name, ("x",), ("y",), tuple(parts), (len(stages),)), f"servable s, method {name}"
    )
    for index, (limit, function) in enumerate(stages):
        made.stages.append(PreparedStage((index,), limit, one_input(function)))
    return made


class Machine:
    """An executor, and a log of the batches that ran."""

    def __init__(self, **stages):
        self.log = []
        self.programs = {
            name: program(
                name,
                *[
                    (limit, self.logged(f"{name}{index}", function))
                    for index, (limit, function) in enumerate(steps)
                ],
            )
            for name, steps in stages.items()
        }
        self.executor = Executor(self.programs)
        self._next_id = 0

    def logged(self, label, function):
        def run(values):
            self.log.append((label, list(values)))
            return [function(value) for value in values]

        return run

    def add(self, name, *values, deadline=None, codec=TextCodec):
        self._next_id += 1
        item = RunningPart(self._next_id, self.programs[name], codec, deadline)
        self.executor.add(item, [{"x": value} for value in values])
        return item

    def run(self, now=0.0, steps=100):
        while self.executor.has_work and steps:
            self.executor.run_next(now)
            steps -= 1
        assert steps or not self.executor.has_work

    @property
    def finished(self):
        return [item.id for item in self.executor.finished]


def plus(number):
    return lambda value: (value + number,)


def times(number):
    return lambda value: (value * number,)


def texts(item):
    return [None if fault is None else str(fault) for fault in item.faults]


# --- results ------------------------------------------------------------------------------------


def test_stages_run_in_order():
    machine = Machine(m=[(8, plus(1)), (8, times(10))])
    item = machine.add("m", 1, 2)
    machine.run()
    assert item.outputs == [b"y=20", b"y=30"]
    assert item.faults is None
    assert machine.finished == [item.id]


def test_a_method_without_stages_returns_its_inputs():
    machine = Machine(m=[])
    item = machine.add("m", 7)
    assert not machine.executor.has_work
    assert item.outputs == [b"y=7"]
    assert machine.finished == [item.id]


def test_a_part_without_instances_is_refused():
    with pytest.raises(InvalidInputs, match="Instances count of request cannot be 0, servable s"):
        Machine(m=[(1, plus(1))]).add("m")


def test_nothing_to_run_is_harmless():
    for machine in (Machine(m=[(1, plus(1))]), Machine()):
        machine.executor.run_next(0.0)
        assert (machine.log, machine.finished) == ([], [])


# --- batches and turns --------------------------------------------------------------------------


def test_a_batch_holds_at_most_the_limit_of_its_stage():
    machine = Machine(m=[(3, plus(0))])
    machine.add("m", 1, 2, 3, 4, 5)
    machine.run()
    assert machine.log == [("m0", [1, 2, 3]), ("m0", [4, 5])]


def test_instances_of_several_requests_share_a_batch():
    machine = Machine(m=[(4, plus(0))])
    first, second = machine.add("m", 1, 2), machine.add("m", 3)
    machine.run()
    assert machine.log == [("m0", [1, 2, 3])]
    assert (first.outputs, second.outputs) == ([b"y=1", b"y=2"], [b"y=3"])


def test_later_stages_go_first():
    machine = Machine(m=[(2, plus(0)), (2, plus(0))])
    machine.add("m", 1, 2, 3, 4)
    machine.run()
    assert machine.log == [("m0", [1, 2]), ("m1", [1, 2]), ("m0", [3, 4]), ("m1", [3, 4])]


def test_methods_take_turns():
    machine = Machine(a=[(1, plus(0))], b=[(1, plus(0))], c=[(1, plus(0))])
    machine.add("a", 1, 2)
    machine.add("b", 1, 2)
    machine.add("c", 1)
    machine.run()
    assert [label for label, _ in machine.log] == ["a0", "b0", "c0", "a0", "b0"]


def test_a_small_request_does_not_wait_for_a_large_request_elsewhere():
    machine = Machine(a=[(1, plus(0))], b=[(1, plus(0))])
    machine.add("a", *range(50))
    small = machine.add("b", 1)
    machine.executor.run_next(0.0)
    machine.executor.run_next(0.0)
    assert machine.finished == [small.id]


# --- failures -----------------------------------------------------------------------------------


def test_a_failing_instance_fails_alone():
    def reciprocal(value):
        return (1 / value,) if value else StageFailed("division by zero")

    machine = Machine(m=[(8, reciprocal), (8, plus(0))])
    item = machine.add("m", 2, 0, 4)
    machine.run()
    assert item.outputs == [b"y=0.5", b"", b"y=0.25"]
    assert texts(item) == [
        None,
        "Call Function 'm0' Failed, method: 'm', stage 1 of 2, error msg: division by zero",
        None,
    ]


def test_the_text_counts_stages_from_1():
    machine = Machine(m=[(8, plus(0)), (8, lambda value: StageFailed("no"))])
    item = machine.add("m", 1)
    machine.run()
    assert "stage 2 of 2, error msg: no" in texts(item)[0]


def test_the_kind_of_error_is_kept():
    machine = Machine(m=[(8, lambda value: InvalidInputs("no"))])
    item = machine.add("m", 1)
    machine.run()
    assert type(item.faults[0]) is InvalidInputs


def test_a_very_long_text_is_cut():
    machine = Machine(m=[(8, lambda value: StageFailed("x" * 100_000))])
    item = machine.add("m", 1)
    machine.run()
    assert len(texts(item)[0]) == 4096


def test_a_stage_that_raises_fails_only_the_instances_in_its_batch():
    def raise_for_2(value):
        if value == 2:
            raise ValueError("two")
        return (value,)

    machine = Machine(m=[(2, raise_for_2)])
    first, second = machine.add("m", 1, 2), machine.add("m", 3)
    machine.run()
    assert all(text.endswith("error msg: two") for text in texts(first))
    assert second.outputs == [b"y=3"]
    assert second.faults is None


def test_an_exception_without_a_text_is_shown_by_its_type():
    def fail(value):
        raise KeyError

    machine = Machine(m=[(2, fail)])
    item = machine.add("m", 1)
    machine.run()
    assert texts(item)[0].endswith("error msg: KeyError")


def test_a_stage_that_calls_sys_exit_fails_only_its_batch():
    def leave_for_2(value):
        if value == 2:
            sys.exit(1)
        return (value,)

    machine = Machine(m=[(1, leave_for_2)])
    item = machine.add("m", 1, 2, 3)
    machine.run()
    assert item.outputs == [b"y=1", b"", b"y=3"]
    assert texts(item)[1].endswith("error msg: SystemExit(1)")


@pytest.mark.parametrize("outcome", [(1, 2), ()], ids=["too many", "none"])
def test_a_wrong_count_of_outputs_fails_the_instance_and_not_the_worker(outcome):
    machine = Machine(m=[(4, lambda value: outcome if value == 2 else (value,))])
    item = machine.add("m", 1, 2, 3)
    machine.run()
    assert item.outputs == [b"y=1", b"", b"y=3"]
    assert texts(item)[1].endswith(
        f"error msg: it returned {len(outcome)} outputs, 1 are registered"
    )


def test_an_output_that_cannot_be_sent_fails_its_instance():
    machine = Machine(m=[(4, plus(0))])
    item = machine.add("m", 1, 2, 3, codec=RefusingCodec)
    machine.run()
    assert item.outputs == [b"sent", b"", b"sent"]
    assert texts(item) == [None, "2 cannot be sent", None]


# --- deadlines and cancellation -----------------------------------------------------------------


def test_a_cancelled_request_takes_no_place_in_a_batch():
    machine = Machine(m=[(2, plus(0))])
    cancelled, waited_for = machine.add("m", 1, 2), machine.add("m", 3, 4)
    cancelled.is_cancelled = True
    machine.run()
    assert machine.log == [("m0", [3, 4])]
    assert waited_for.outputs == [b"y=3", b"y=4"]
    assert machine.finished == [cancelled.id, waited_for.id]


def test_a_late_request_takes_no_place_in_a_batch():
    machine = Machine(m=[(2, plus(0))])
    late = machine.add("m", 1, deadline=10.0)
    in_time = machine.add("m", 2, 3, deadline=10.1)
    machine.run(now=10.0)
    assert machine.log == [("m0", [2, 3])]
    assert in_time.faults is None
    assert type(late.faults[0]) is DeadlineExceeded
    assert texts(late) == ["time is up before stage 1"]


def test_time_may_run_out_between_stages():
    machine = Machine(m=[(1, plus(0)), (1, plus(0))])
    item = machine.add("m", 1, deadline=10.0)
    machine.executor.run_next(9.9)
    machine.executor.run_next(10.0)
    assert texts(item) == ["time is up before stage 2"]
    assert [label for label, _ in machine.log] == ["m0"]


def test_a_batch_of_nothing_but_late_requests_is_not_run():
    machine = Machine(m=[(2, plus(0))])
    machine.add("m", 1, 2, 3, deadline=1.0)
    machine.run(now=2.0)
    assert machine.log == []
    assert len(machine.finished) == 1


# --- stages elsewhere ---------------------------------------------------------------------------


def test_jobs_sent_away_come_back_by_resume():
    machine = Machine(m=[(4, plus(0)), (4, plus(1))])
    away = []
    machine.programs["m"].stages[0].start = lambda _, jobs: away.append(jobs)
    item = machine.add("m", 1, 2)
    machine.run()
    assert (len(away[0]), machine.finished) == (2, [])
    machine.executor.resume(away[0], [(10,), StageFailed("lost")])
    machine.run()
    assert item.outputs == [b"y=11", b""]
    assert "error msg: lost" in texts(item)[1]


def test_jobs_that_cannot_be_sent_away_fail():
    machine = Machine(m=[(4, plus(0))])

    def fail(_, jobs):
        raise StageFailed("too large")

    machine.programs["m"].stages[0].start = fail
    item = machine.add("m", 1)
    machine.run()
    assert texts(item)[0].endswith("error msg: too large")


def test_the_batch_size_of_a_program_is_the_largest_that_gains():
    made = program("m", (4, plus(0)), (16, plus(0)), (2, plus(0)))
    made.stages[1].gains_from_batch = False
    assert made.batch_size == 4
    assert program("m").batch_size == 1
