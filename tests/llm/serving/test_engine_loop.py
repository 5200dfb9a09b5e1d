"""The step loop over an engine that does as it is told."""

import math
import threading
import time

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.serving import engine_loop
from mindspore_serving.llm.serving.engine_loop import EngineLoop, LoopCallbacks
from tests.waiting import PATIENCE


class FakeEngine:
    """Has `left` steps to do; `broken` makes the next raise."""

    def __init__(self):
        self.left, self.broken, self.is_closed, self.started = 0, None, False, []

    @property
    def has_work(self):
        return self.left > 0

    def step(self):
        if self.broken:
            raise self.broken
        self.left = max(0, self.left - 1)
        return [("r", self.left)]

    def stats(self):
        return self.left

    def do_idle_work(self):
        return None

    def close(self):
        self.is_closed = True


class Told:
    def __init__(self):
        self.outputs, self.stats, self.problems = [], [], []
        self.changed, self.ended = threading.Condition(), threading.Event()
        self.engine = FakeEngine()
        callbacks = LoopCallbacks(self.take, self.stats.append, self.end)
        self.loop = EngineLoop(self.engine, callbacks)
        self.loop.start()

    def take(self, outputs):
        with self.changed:
            self.outputs += outputs
            self.changed.notify_all()

    def end(self, problem):
        self.problems.append(problem)
        self.ended.set()

    def wait_for(self, output):
        with self.changed:
            assert self.changed.wait_for(lambda: output in self.outputs, PATIENCE), self.outputs


def work(count):
    def command(engine):
        engine.left = count

    return command


def test_commands_run_before_the_next_step_and_their_outputs_come_first():
    told = Told()
    told.loop.post("r", lambda engine: work(2)(engine) or [("r", "begun")])
    told.wait_for(("r", 0))
    assert told.outputs == [("r", "begun"), ("r", 1), ("r", 0)]
    told.loop.close()
    assert told.engine.is_closed
    assert told.problems == [None]


def test_the_loop_reports_the_first_step_before_its_outputs():
    told = Told()
    told.engine.started = ["r"]
    before = time.monotonic()
    told.loop.post("r", work(1))
    told.wait_for(("r", 0))
    (name, started), last = told.outputs
    assert (name, last) == ("r", ("r", 0))
    assert before <= started.at <= time.monotonic()
    told.loop.close()


def test_a_refused_command_is_the_output_of_its_request_alone():
    told = Told()
    error = InvalidInputs("no")

    def refuse(engine):
        raise error

    told.loop.post("bad", refuse)
    told.loop.post("r", work(1))
    told.wait_for(("r", 0))
    assert told.outputs[0] == ("bad", error)
    told.loop.close()


def test_counters_are_reported_when_work_begins_and_ends(monkeypatch):
    monkeypatch.setattr(engine_loop, "STATS_INTERVAL", math.inf)
    told = Told()
    for _ in range(2):
        told.outputs.clear()
        told.loop.post("r", work(3))
        told.wait_for(("r", 0))
    told.loop.close()
    assert told.stats == [2, 0, 2, 0]


def test_a_step_that_raises_ends_the_loop_closes_the_engine_and_says_why():
    told = Told()
    told.engine.broken = MemoryError("injected")
    told.loop.post("r", work(1))
    assert told.ended.wait(PATIENCE)
    assert told.problems == [told.engine.broken]
    assert told.engine.is_closed
    told.loop.close()  # harmless


def test_a_command_that_breaks_ends_the_loop_too():
    told = Told()
    told.loop.post("r", lambda engine: 1 / 0)
    assert told.ended.wait(PATIENCE)
    assert isinstance(told.problems[0], ZeroDivisionError)
