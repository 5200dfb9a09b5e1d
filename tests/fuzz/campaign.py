"""A campaign: cases, sent to one server over several connections, and what they do to it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import recovery
from tests.chaos.measuring import level_of, problems_of_level
from tests.chaos.server import Server, Site
from tests.e2e.harness import Calls, eventually, in_flight
from tests.fuzz.case import Case
from tests.fuzz.judging import problem_of
from tests.fuzz.logs import Logs
from tests.fuzz.sending import BOUND, Exchanged, Lane

SITE = Site(llm_options=(("max_num_seqs", 16), ("max_model_len", 256), ("dtype", "f32")))
LANES = 8
BLOCK = 200  # cases between two looks at the server
GROWTH = 96 << 20  # bytes that a process may have grown by in the end


@dataclass(frozen=True, slots=True)
class Finding:
    """`cases` did `problem` to the server, which answered `answer`: one, or one of several."""

    problem: str
    cases: tuple[Case, ...]
    answer: str = ""

    def __str__(self) -> str:
        names = ", ".join(f"{case.protocol} {case.origin}" for case in self.cases[:3])
        more = f" and {len(self.cases) - 3} more" if len(self.cases) > 3 else ""
        return f"{names}{more}: {self.problem}"


@dataclass(slots=True)
class Report:
    """What was sent, and what was found."""

    num_sent: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    growth: int = 0

    def count(self, case: Case, found: Exchanged) -> None:
        self.num_sent += 1
        codes = [str(answer.status or "none") for answer in found.answers] or [
            found.status or "sent"
        ]
        self.codes.update(f"{case.protocol} {code.partition(':')[0]}" for code in codes)
        self.slowest = max(self.slowest, (found.seconds, f"{case.protocol} {case.origin}"))


class Campaign:
    """Sends to a server of `SITE`, warmed up, that nobody else asks.

    `is_known(finding)` says whether a finding is expected.  `is_single`: one case after another,
    and a look at the server behind each.
    """

    def __init__(
        self,
        server: Server,
        is_known: Callable[[Finding], bool] = lambda _: False,
        *,
        is_single: bool = False,
    ) -> None:
        self._server = server
        self._is_known = is_known
        self._logs = Logs(server)
        self._workers = _workers(server)
        self._level = level_of(server)
        self._num_in_flight = _num_in_flight(server)
        self._is_single = is_single
        self.report = Report()

    async def run(
        self, cases: Sequence[Case], on_done: Callable[[], object] = lambda: None
    ) -> None:
        """Send `cases`, a block after another."""
        size = 1 if self._is_single else BLOCK
        for start in range(0, len(cases), size):
            block = cases[start : start + size]
            await self._send(block, on_done)
            problems = await asyncio.to_thread(self._look)
            for problem in problems:
                self._add(Finding(problem, tuple(block)))
            if not self._server.is_running:
                return

    def finish(self) -> None:
        """Look whether the server is back where it was, and ends."""
        found = problems_of_level(self._server, self._level, GROWTH, None, BOUND)
        self.report.growth = found.growth
        num_left = _num_left_in_flight(self._server, self._num_in_flight)
        if num_left:
            found.problems.append(f"{num_left} requests are in flight for ever")
        for problem in found.problems:
            self._add(Finding(problem, ()))

    async def _send(self, block: Sequence[Case], on_done: Callable[[], object]) -> None:
        waiting = iter(block)

        async def drive() -> None:
            lane = Lane(self._server.http, self._server.grpc)
            for case in waiting:
                try:
                    found = await lane.send(case)
                except OSError as error:
                    self._add(Finding(f"no connection: {error}", (case,)))
                    break
                self.report.count(case, found)
                if problem := problem_of(case, found):
                    self._add(Finding(problem, (case,), _shown(found)))
                on_done()
            await lane.aclose()

        await asyncio.gather(*(drive() for _ in range(min(LANES, len(block)))))

    def _look(self) -> list[str]:
        """What is wrong with the server itself."""
        if not self._server.is_running:
            return [f"the server has ended: {self._server.script.text[-500:]}"]
        problems = []
        if self._is_wrong():
            problems.append("it gives no right answer any more")
        problems += self._logs.problems()
        now = _workers(self._server)
        if now != self._workers:
            problems.append(f"workers have died: {self._workers}, now {now}")
            self._workers = now
        return problems

    def _is_wrong(self) -> bool:
        """Whether a servable gives no right answer over a protocol."""
        return any(
            recovery.never_right(self._server, set(recovery.SERVABLES) - {name}, BOUND)
            for name in recovery.SERVABLES
        )

    def _add(self, finding: Finding) -> None:
        if not self._is_known(finding):
            self.report.findings.append(finding)


def start(directory: Path) -> Server:
    """A server for a campaign, warmed up."""
    server = Server(SITE, directory)
    try:
        server.wait_until_started()
        recovery.warm_up(server)
    except BaseException:
        server.close()
        raise
    return server


def _workers(server: Server) -> dict[str, list[int]]:
    return {name: server.workers(name) for name in recovery.SERVABLES}


def _num_left_in_flight(server: Server, before: int) -> int:
    """How many requests more than `before` the server still counts when BOUND is over."""
    with suppress(AssertionError):
        eventually(lambda: _num_in_flight(server) <= before, BOUND)
    return max(0, _num_in_flight(server) - before)


def _num_in_flight(server: Server) -> int:
    return int(in_flight(Calls(f"127.0.0.1:{server.grpc}", server.http)))


def _shown(found: Exchanged) -> str:
    if found.answers:
        return "\n".join(f"{answer.status} {answer.body[:600]!r}" for answer in found.answers[-2:])
    return f"{found.status} {found.replies[-1][:600] if found.replies else b''!r}"
