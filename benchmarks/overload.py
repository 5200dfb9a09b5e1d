"""What is left of a server's speed at ten times the load that it can take.

    python -m benchmarks.overload [--seconds 30] [--rounds 3] [--model DIRECTORY] [--neighbour]
                                  [--only leaves,deadline,open,closed,enqueued] [--against CHECKOUT]

Rounds in turns: the peak, in a closed loop of as many clients as get most answers (8, 16 or 32,
with the patience of those of the overload), and of a new server the overload, which it meets cold.
Goodput is what is answered in time, also from the SETTLED-th second on; the ratio is that to the
peak of the same round.  The clients share the processor with the server, so what both have used of
it is listed as well: answers per second of the server's own time, in the overload and at the peak,
say what was lost to something else.

leaves, deadline: an open loop (Poisson) at ten times the peak, of clients that leave after 3 s
without a word, or say so in X-Request-Timeout.  open, closed: patient clients of a language model
that lets 32 wait, in an open loop, and ten times as many as at the peak that ask again at once.
enqueued: the same of a classic servable with `--max-enqueued-requests 40`.
With --neighbour a process beside them burns the time of half of the cores all the while.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import uvloop

from benchmarks.overload_clients import Clients, Outcomes
from benchmarks.processes import HERE, ROOT, free_ports, running
from benchmarks.processor_time import neighbour, server_time
from benchmarks.report import print_json, print_table

PATIENCE = 3.0  # seconds that a client waits
PATIENT = 60.0
SETTLED = 5  # seconds
WARM = 2  # seconds
FACTOR = 10


@dataclass(frozen=True, slots=True)
class Load:
    """How clients come, and with which options the server meets them."""

    patience: float
    says_timeout: bool = False
    is_closed: bool = False
    language: tuple[str, ...] | None = ()  # options of the server; None: the kind is not of it
    classic: tuple[str, ...] | None = ()


WAITING = ("--llm-option", "max_num_waiting=32")
ENQUEUED = ("--max-enqueued-requests", "40")
LOADS = {
    "leaves": Load(PATIENCE),
    "deadline": Load(PATIENCE, says_timeout=True),
    "open": Load(PATIENT, language=WAITING, classic=None),
    "closed": Load(PATIENT, is_closed=True, language=WAITING, classic=None),
    "enqueued": Load(PATIENT, is_closed=True, language=None, classic=ENQUEUED),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is served, and what is asked: a path and a body; as many clients find the peak."""

    name: str
    directory: Path
    path: str
    body: bytes
    num_clients: int

    def request(self, *, says_timeout: bool = False) -> bytes:
        timeout = f"X-Request-Timeout: {PATIENCE:g}\r\n" if says_timeout else ""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{timeout}"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(frozen=True, slots=True)
class Phase:
    """What came of one phase, and what it took of the processor, in seconds."""

    outcomes: Outcomes
    seconds: int
    server: float
    clients: float

    def rate(self, first: int = 0) -> float:
        return self.outcomes.rate(first, self.seconds)

    @property
    def per_server_second(self) -> float:
        return self.outcomes.statuses[200] / max(self.server, 0.01)


def measured(run: Callable[[], Outcomes], seconds: int) -> Phase:
    before = server_time(), time.process_time()
    outcomes = run()
    used = server_time() - before[0], time.process_time() - before[1]
    return Phase(outcomes, seconds, *used)


def run_peak(
    port: int, subject: Subject, count: int, seconds: int, patience: float = PATIENT
) -> Phase:
    async def run() -> Outcomes:
        return await Clients(port, subject.request(), patience).closed_loop(count, seconds)

    return measured(lambda: uvloop.run(run()), seconds)


def run_load(
    port: int, subject: Subject, load: Load, peak: tuple[int, float], seconds: int
) -> Phase:
    """`peak` is found by so many clients, and so many answers per second."""

    async def run() -> Outcomes:
        request = subject.request(says_timeout=load.says_timeout)
        clients = Clients(port, request, load.patience)
        if load.is_closed:
            return await clients.closed_loop(FACTOR * peak[0], seconds)
        return await clients.open_loop(FACTOR * peak[1], seconds)

    return measured(lambda: uvloop.run(run()), seconds)


@contextmanager
def server(subject: Subject, checkout: Path, options: tuple[str, ...]) -> Iterator[int]:
    """The port of a new one, which has answered one request."""
    (port,) = free_ports(1)
    command = ["env", "-C", str(checkout), f"PYTHONPATH={checkout}", sys.executable]
    command += ["-m", "mindspore_serving", "serve", str(subject.directory), "--no-grpc", *options]
    command += ["--http-port", str(port), "--http-status-codes", "--num-parallel-workers", "1"]

    async def ask() -> bool:
        clients = Clients(port, subject.request(), PATIENT)
        clients.ask()
        outcomes = clients.outcomes
        while not outcomes.statuses:
            await clients.pause()
        return outcomes.statuses[200] == 1

    with running(f"overload_{subject.name}", command, lambda: uvloop.run(ask())):
        yield port


def find_peak(port: int, subject: Subject, seconds: int, patience: float) -> tuple[int, Phase]:
    """How many clients, of num_clients, twice and 4 times as many, get most answers, and those.
    Raises SystemExit if there are none."""
    run_peak(port, subject, subject.num_clients, WARM, patience)
    counts = [subject.num_clients * factor for factor in (1, 2, 4)]
    found = [(count, run_peak(port, subject, count, seconds, patience)) for count in counts]
    count, best = max(found, key=lambda pair: pair[1].rate())
    if not best.rate():
        raise SystemExit("nothing was answered at the peak: give fewer --tokens")
    return count, best


def rounds_of(
    subject: Subject, name: str, checkouts: list[Path], num_rounds: int, seconds: int
) -> Iterator[list[str]]:
    """A row for each checkout."""
    load = LOADS[name]
    special = load.language if subject.name == "language" else load.classic
    assert special is not None
    results: dict[Path, list[tuple[Phase, Phase]]] = {one: [] for one in checkouts}
    for _ in range(num_rounds):
        for checkout in checkouts:
            with server(subject, checkout, ()) as port:
                count, best = find_peak(port, subject, max(5, seconds // 3), load.patience)
            with server(subject, checkout, special) as port:
                loaded = run_load(port, subject, load, (count, best.rate()), seconds)
            results[checkout].append((loaded, best))
            report(subject, name, checkout, [(loaded, best)], is_whole=False)
    for checkout, pairs in results.items():
        yield report(subject, name, checkout, pairs, is_whole=True)


def report(
    subject: Subject, name: str, checkout: Path, pairs: list[tuple[Phase, Phase]], *, is_whole: bool
) -> list[str]:
    """A row of the table."""
    settled = [loaded.rate(SETTLED) / best.rate() for loaded, best in pairs]
    cold = [loaded.rate() / best.rate() for loaded, best in pairs]
    thrift = [loaded.per_server_second / best.per_server_second for loaded, best in pairs]
    loads = [loaded for loaded, _ in pairs]
    refused = sum(len(one.outcomes.refused) for one in loads) / sum(one.seconds for one in loads)
    used = [[one.server / one.seconds, one.clients / one.seconds] for one in loads]
    statuses = [dict(one.outcomes.statuses) for one in loads]
    label = f"{subject.name}, {name}" + ("" if checkout == ROOT else f", {checkout.name}")
    if not is_whole:
        seconds = [loads[0].outcomes.answered[one] for one in range(loads[0].seconds)]
        print_json(
            "overload",
            label=label,
            peak=pairs[0][1].rate(),
            settled=settled[0],
            cold=cold[0],
            thrift=thrift[0],
            used=used[0],
            statuses=statuses[0],
            by_second=seconds,
            refused_ms=[loads[0].outcomes.refused_ms(q) for q in (0.5, 0.99)],
            without_retry_after=loads[0].outcomes.num_without_retry_after,
        )
    return [
        label,
        f"{mean(best.rate() for _, best in pairs):.1f}",
        f"{mean(settled):.2f} ({min(settled):.2f} to {max(settled):.2f})",
        f"{mean(cold):.2f}",
        f"{mean(thrift):.2f}",
        f"{mean(one[0] for one in used):.2f}",
        f"{mean(one[1] for one in used):.2f}",
        f"{refused:.0f}",
        f"{mean(one.outcomes.refused_ms(0.5) for one in loads):.1f}",
        f"{mean(one.outcomes.refused_ms(0.99) for one in loads):.0f}",
    ]


HEADER = ["", "peak/s", "ratio, from second 5", "from 0", "per server s", "server", "clients"]
HEADER += ["refused/s", "after ms", "p99"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=30, help="of each overload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="directory of a language model")
    parser.add_argument("--clients", type=int, default=8, help="that find a peak, or 2 or 4 times")
    parser.add_argument("--tokens", type=int, default=384, help="of an answer")
    parser.add_argument("--only", default=",".join(LOADS), help="kinds of load")
    parser.add_argument("--subject", choices=("classic", "language"))
    parser.add_argument("--neighbour", action="store_true")
    parser.add_argument("--against", type=Path, help="another checkout, in turns with this one")
    options = parser.parse_args()
    body = json.dumps({"instances": [{"x": 1}]}).encode()
    place = HERE / "servables" / "slow_add_one"
    path = "/model/slow_add_one:add_one"
    subjects = [Subject("classic", place, path, body, options.clients)]
    if options.model is not None:
        model = options.model.absolute()
        question = {
            "model": model.name,
            "prompt": "Once upon a time",
            "max_tokens": options.tokens,
            "ignore_eos": True,
        }
        body = json.dumps(question).encode()
        subjects.append(Subject("language", model, "/v1/completions", body, options.clients))
    checkouts = [ROOT, *([options.against.absolute()] if options.against else [])]
    rows: list[list[str]] = []
    with neighbour(is_there=options.neighbour):
        for subject in subjects:
            if options.subject not in (None, subject.name):
                continue
            for name in options.only.split(","):
                load = LOADS[name]
                if (load.language if subject.name == "language" else load.classic) is not None:
                    asked = options.rounds, options.seconds
                    rows += rounds_of(subject, name, checkouts, *asked)
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
