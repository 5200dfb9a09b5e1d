"""A fault, what must hold, and how it is measured on a running server.

Knows no particular fault: those are the rows of `table`.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.chaos.asking import HUNG, Ask, Code, Flight
from tests.chaos.bystanders import Bystander
from tests.chaos.measuring import Level, level_of, problems_of_level
from tests.chaos.recovery import is_quiet, never_right
from tests.chaos.server import Server, Site, wait_until_gone

MIB = 1 << 20
# The report says how long things took; a test only that they end, whatever else the machine does.
_SLACK = 6 if "PYTEST_VERSION" in os.environ else 1
BOUND = 30.0 * _SLACK  # seconds after which a request counts as hung, a servable as lost
END_BOUND = 60.0 * _SLACK  # seconds after which a server that is to end counts as hung
HELD_BOUND = 10.0 * _SLACK  # seconds beyond which a request beside the fault counts as held up


@dataclass(slots=True)
class Scene:
    """A server with a fault under way."""

    server: Server
    undo: ExitStack  # what is done before the recovery is looked at
    pid: int = 0  # of the process that the fault is done to
    flights: list[Flight] = field(default_factory=list)
    causes: list[Flight] = field(default_factory=list)

    def ask(self, *asks: Ask) -> list[Flight]:
        """Send requests that have nothing to do with the fault but to be in flight."""
        flights = [Flight(ask) for ask in asks]
        self.flights += flights
        return flights

    def cause(self, *asks: Ask) -> list[Flight]:
        """Send requests that are the fault."""
        flights = [Flight(ask) for ask in asks]
        self.causes += flights
        return flights


Step: TypeAlias = Callable[[Scene], object]


@dataclass(frozen=True, slots=True)
class Must:
    """What must hold.

    Attributes:
        codes: what requests in flight may be answered with.
        own: the same of requests that are the fault.
        ends: the server ends by itself, with one of `statuses` (any if it is empty).
        gone: servables that are not there afterwards, by design.
        growth: MiB that a process may have grown by in the end.
        peak: MiB that it may have grown by meanwhile; None any number.
    """

    codes: frozenset[Code] = frozenset({200})
    own: frozenset[Code] = frozenset({200})
    ends: bool = False
    statuses: frozenset[int] = frozenset({0})
    gone: frozenset[str] = frozenset()
    growth: int = 64
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table.

    Attributes:
        name: what is done to whom, when.
        prepare: brings the server into the state; picks `scene.pid`.
        do: does it.
        site: the server it needs.
        is_start: the server is still starting when `prepare` is called.
        beside: servables whose requests beside the fault must not be held up.
        needs: what a machine must have, by the name that `limits` has for it.
        check: finds more problems in the end.
        is_short: it belongs to the short form.
    """

    name: str
    prepare: Step
    do: Step
    must: Must = Must()
    site: Site = Site()
    is_start: bool = False
    beside: tuple[str, ...] = ("good",)
    check: Callable[[Scene], list[str]] = lambda _: []
    needs: str = ""
    is_short: bool = False


@dataclass(slots=True)
class Result:
    """What was measured.  Times are in seconds, memory in bytes."""

    fault: str
    to_answer: float | None = None  # until the last request in flight was answered; None: no such
    codes: Counter[Code] = field(default_factory=Counter)
    num_hung: int = 0
    num_left: int = 0  # orphans and zombies
    to_right: float | None = None  # until every servable was right again; None: never, or ended
    held: float = 0.0  # longest wait of a request beside the fault
    growth: int = 0
    has_ended: bool = False
    problems: list[str] = field(default_factory=list)


def run(fault: Fault, server: Server) -> Result:
    """Do `fault` to `server`, and measure.  Never raises for what the server does."""
    result = Result(fault.name)
    before = None if fault.is_start else level_of(server)
    with ExitStack() as undo:
        scene = Scene(server, undo)
        beside = [] if fault.is_start else [Bystander(server, name) for name in fault.beside]
        undo.callback(lambda: [each.stop() for each in beside])
        fault.prepare(scene)
        began = time.monotonic()
        fault.do(scene)
        _collect(scene, began, fault.must, result)
        result.problems += fault.check(scene)
        if fault.must.ends:
            _check_end(fault.must, server, began + END_BOUND, result)
        for each in beside:
            each.stop()
            result.held = max(result.held, each.longest)
            result.problems += each.problems(HELD_BOUND, may_end=fault.must.ends)
    if not fault.must.ends:
        _check_recovery(fault.must, server, before, result)
    return result


def _collect(scene: Scene, began: float, must: Must, result: Result) -> None:
    """Wait for the requests in flight."""
    until = time.monotonic() + BOUND
    groups = (("answers", scene.flights, must.codes), ("the cause", scene.causes, must.own))
    for title, flights, expected in groups:
        codes = Counter(flight.wait(until) for flight in flights)
        result.codes.update(codes)
        result.num_hung += codes[HUNG]
        if not codes.keys() <= expected:
            result.problems.append(f"{title} {dict(codes)}, expected {sorted(expected, key=str)}")
    ended = [flight.ended for flight in (*scene.flights, *scene.causes)]
    result.to_answer = max(ended) - began if ended else None


def _check_end(must: Must, server: Server, until: float, result: Result) -> None:
    result.has_ended = wait_until_gone([server.pid], until - time.monotonic())
    if not result.has_ended:
        result.problems.append(f"the server has not ended within {END_BOUND:g} s")
        return
    status = server.script.status()
    if must.statuses and status not in must.statuses:
        result.problems.append(f"exit status {status}, expected {sorted(must.statuses)}")
    if not wait_until_gone(server.orphans(), BOUND):
        result.num_left = len(server.orphans())
        result.problems.append(f"{result.num_left} processes are left")
    if "Exception ignored" in server.script.text:
        result.problems.append("an exception was ignored at the end")


def _check_recovery(must: Must, server: Server, before: Level | None, result: Result) -> None:
    began = time.monotonic()
    lost = never_right(server, must.gone, BOUND)
    if not server.is_running:
        result.has_ended = True
        result.problems.append(f"the server has ended: {server.script.text[-300:]}")
        return
    result.problems += [f"{name} is not right within {BOUND:g} s" for name in lost]
    result.to_right = None if lost else time.monotonic() - began
    if not is_quiet(server, BOUND):
        result.problems.append("its processes go on computing although nobody asks")
    if before is not None:
        found = problems_of_level(server, before, must.growth * MIB, must.peak, BOUND)
        result.growth, result.num_left = found.growth, found.num_left
        result.problems += found.problems
