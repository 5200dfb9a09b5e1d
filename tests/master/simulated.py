"""Clients, a worker and the real dispatcher between them, in simulated time: seconds pass at once.

The worker's speed, how clients come and how long they wait are given; what is answered in time is
counted by second.  An answer that comes when its client has left is work that was lost.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.dispatcher import Dispatcher

STEP = 0.01  # seconds between two looks of a worker at what it has
BODY = json.dumps({"instances": [{"x": 1}]}).encode()
REFUSAL = 50e-6  # seconds of the processor that a refusal costs: benchmarks.refusal_cost


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: when nothing is to be done, it is the time of what is next."""

    def __init__(self):
        super().__init__()
        self._now = 1000.0

    def time(self):
        return self._now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


@dataclass
class Load:
    """How clients come for `seconds`: evenly but for `bursts`, so many more at a second.

    `patience` draws how long one waits; they say so if `says_timeout`.
    """

    patience: object = lambda draw: 3.0
    says_timeout: bool = False
    bursts: dict = field(default_factory=dict)
    seconds: int = 20


class SlowWorker:
    """In place of a link; `speed` of a time is how many times as fast as at first it is."""

    owns_models = True

    def __init__(self, loop, speed):
        self.loop = loop
        self.speed = speed
        self.held = {}  # part -> what is left to do
        self.num_sent = 0
        self.num_refused = 0  # which took of its processor since it looked last

    def send_work(self, parts, now, strategy):
        for part in parts:
            self.num_sent += 1
            part.mark_sent(self, self.num_sent, strategy, now)
            self.held[part] = self.work

    def cancel(self, part):
        left = self.held.pop(part, None)
        if left is not None:  # a worker answers what was cancelled, too
            self.loop.call_soon(part.strategy.on_answers, self, [(part, Reply())])

    async def run(self):
        began = before = self.loop.time()
        while True:
            await asyncio.sleep(STEP)
            now = self.loop.time()
            lost, self.num_refused = self.num_refused * REFUSAL, 0
            self.compute(max(0.0, now - before - lost) * self.speed(now - began))
            before = now

    def done(self, parts):
        for part in parts:
            del self.held[part]
        if parts:
            parts[0].strategy.on_answers(self, [(part, Reply([b"{}"])) for part in parts])


class Engine(SlowWorker):
    """Computes 384 tokens of each of at most MOST together: 0.8 ms a step, and 0.1 for each."""

    work = 384.0
    streams = True
    MOST = 64

    def compute(self, seconds):
        running = list(self.held)[: self.MOST]
        steps = seconds / self.step(len(running))
        for part in running:
            self.held[part] -= steps
        self.done([part for part in running if self.held[part] <= 0])

    @staticmethod
    def step(num_running):
        return 0.8e-3 + num_running * 0.105e-3

    @classmethod
    def rates(cls):
        """With 8, 16 and 32 that are computed together, as `benchmarks.overload` finds the peak:
        how long each takes, and how many per second are answered."""
        for count in (8, 16, 32):
            seconds = cls.work * cls.step(count)
            yield seconds, count / seconds


class LinearEngine(Engine):
    """Gains next to nothing from computing many together, as a large model on a processor."""

    @staticmethod
    def step(num_running):
        return 0.1e-3 + num_running * 0.14e-3


class Stage(SlowWorker):
    """Takes 50 ms for each, one after another."""

    work = 0.05
    streams = False

    def compute(self, seconds):
        done = []
        for part, left in list(self.held.items()):
            taken = min(left, seconds)
            self.held[part] -= taken
            seconds -= taken
            if self.held[part] > 1e-9:
                break
            done.append(part)
        self.done(done)

    @classmethod
    def rates(cls):
        yield cls.work, 1 / cls.work


for _kind in (Engine, LinearEngine):
    _kind.peak = max(rate for _, rate in _kind.rates())
Stage.peak = 20.0


def peak(kind, load, speed):
    """How many per second are answered to as many clients as get most, if each has the patience of
    the `load` and comes again when it is answered."""
    draw = random.Random(2)
    waits = [load.patience(draw) for _ in range(1000)]
    return max(
        speed * rate * sum(wait > seconds / speed for wait in waits) / len(waits)
        for seconds, rate in kind.rates()
    )


def simulate(kind, load, rate, speed=lambda second: 1.0, seed=1):
    """The answers in time of each second, of a worker of a `kind`, to so many clients per second;
    and all outcomes.  `seed` is of when they come, and of their patience."""
    loop = SimulatedLoop()
    with mock.patch("time.monotonic", loop.time):
        try:
            return loop.run_until_complete(_simulate(loop, kind(loop, speed), load, rate, seed))
        finally:
            loop.close()


async def _simulate(loop, worker, load, rate, seed):
    dispatcher, kind = Dispatcher(), type(worker)
    report = MethodReport("m", ["x"], ["y"], 1, True, False, kind.streams)
    service = dispatcher.registry.add_worker(Deployment("d", "s"), 1, [report], worker)
    if kind.streams:
        service.methods["m"].admission.shared.max_running = kind.MOST
    running = loop.create_task(worker.run())
    answered, outcomes, began, draw = Counter(), Counter(), loop.time(), random.Random(seed)

    def ask():
        patience, came = load.patience(draw), loop.time()

        def take(reply):
            if reply.failure is None:
                answered[int(loop.time() - began)] += 1
            else:
                worker.num_refused += 1
            outcomes[type(reply.failure).__name__] += 1
            leaving.cancel()

        request = Request("s", "m", 0, "ms_json", BODY)
        if load.says_timeout:
            request.timeout = patience
        call = dispatcher.submit(request, take)

        def leave():
            outcomes["left"] += 1
            call.cancel()

        leaving = loop.call_at(came + patience, leave)

    due = began
    for second in range(load.seconds):
        for _ in range(load.bursts.get(second, 0)):
            ask()
        while due < began + second + 1:
            await asyncio.sleep(due - loop.time())
            ask()
            due += draw.expovariate(rate)
    running.cancel()
    return answered, outcomes
