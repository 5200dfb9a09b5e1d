"""What is left of a server's speed at ten times the load that it can take, from clients that leave.

    python -m benchmarks.overload [--seconds 30] [--model DIRECTORY] [--only classic|language]

For a classic servable, and for a language model if its directory is given: first the peak, in a
closed loop, then an open loop (Poisson) at ten times that, of clients that have 3 seconds.  They
say so (X-Request-Timeout), or say nothing and leave.  Goodput is what is answered in time; the
ratio is that of both phases of one run.  For the refused: how long that took, and whether the
answer says when to come again; also of those alone that came after LEARNING seconds, because how
long clients wait that do not say so is only known when the first have left.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.processes import HERE, free_ports, running
from benchmarks.report import print_json, print_table

PATIENCE = 3.0  # seconds that a client waits
LEARNING = 10.0
FACTOR = 10
WARM_SECONDS = 3.0
CLASSIC = ("/model/slow_add_one:add_one", {"instances": [{"x": 1}]}, 8)
TOKENS = 384


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked: a path and a body; the peak is found by as many clients, and 2 and 4 times."""

    port: int
    path: str
    body: bytes
    num_clients: int

    def request(self, *, says_timeout: bool) -> bytes:
        timeout = f"X-Request-Timeout: {PATIENCE:g}\r\n" if says_timeout else ""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{timeout}"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(slots=True)
class Outcomes:
    """What became of the requests of a phase."""

    statuses: Counter[int] = field(default_factory=Counter)  # 0: the client has left
    num_answered: int = 0  # before the last request came
    refused: list[tuple[float, float]] = field(default_factory=list)  # when it came, seconds
    num_without_retry_after: int = 0

    def add(self, status: int, head: bytes, came: float) -> None:
        self.statuses[status] += 1
        if status in (429, 503):
            self.refused.append((came, time.perf_counter() - came))
            self.num_without_retry_after += b"\r\nretry-after:" not in head.lower()

    def refused_ms(self, since: float = 0.0) -> tuple[float, float]:
        """The median and the 99th percentile of the refused that came at `since` or later."""
        seconds = sorted(took for came, took in self.refused if came >= since) or [0.0]
        return 1000 * seconds[len(seconds) // 2], 1000 * seconds[int(len(seconds) * 0.99)]


async def ask(subject: Subject, request: bytes, outcomes: Outcomes) -> None:
    """One client, with a connection of its own, which it closes when its patience is over."""
    began = time.perf_counter()
    status, head = 0, b""
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", subject.port)
            try:
                writer.write(request)
                answer = await reader.read()
            finally:
                writer.close()
        head = answer.partition(b"\r\n\r\n")[0]
        status = int(head[9:12])
    except (TimeoutError, OSError, ValueError):
        pass
    outcomes.add(status, head, began)


async def find_peak(subject: Subject, num_clients: int, seconds: float) -> float:
    """Answers per second to as many clients, each of which asks again when it is answered."""
    request, end = subject.request(says_timeout=False), time.perf_counter() + seconds
    outcomes = Outcomes()

    async def client() -> None:
        while time.perf_counter() < end:
            await ask(subject, request, outcomes)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    return outcomes.statuses[200] / (time.perf_counter() - began)


async def overload(subject: Subject, rate: float, seconds: float, *, says: bool) -> Outcomes:
    """The outcomes of `rate` requests per second, whoever is still being answered."""
    request, outcomes = subject.request(says_timeout=says), Outcomes()
    draw, due, end = random.Random(1), time.perf_counter(), time.perf_counter() + seconds
    async with asyncio.TaskGroup() as clients:
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            clients.create_task(ask(subject, request, outcomes))
            due += draw.expovariate(rate)
        outcomes.num_answered = outcomes.statuses[200]
    return outcomes


async def measure(name: str, subject: Subject, seconds: float) -> list[list[str]]:
    rows = []
    await find_peak(subject, subject.num_clients, WARM_SECONDS)
    counts = (subject.num_clients, 2 * subject.num_clients, 4 * subject.num_clients)
    peak = max([await find_peak(subject, count, seconds / 3) for count in counts])
    for label, says in (("deadline", True), ("leaves", False)):
        began = time.perf_counter()
        outcomes = await overload(subject, FACTOR * peak, seconds, says=says)
        goodput = outcomes.num_answered / seconds
        p50, p99 = outcomes.refused_ms()
        _, later = outcomes.refused_ms(began + LEARNING)
        print_json(
            "overload",
            subject=name,
            clients=label,
            peak=peak,
            goodput=goodput,
            ratio=goodput / peak,
            statuses=dict(outcomes.statuses),
            refused_ms={"p50": p50, "p99": p99, "later_p99": later},
            without_retry_after=outcomes.num_without_retry_after,
        )
        rows.append(
            [
                f"{name}, {label}",
                f"{peak:.1f}",
                f"{goodput:.1f}",
                f"{goodput / peak:.2f}",
                f"{len(outcomes.refused)}",
                f"{p50:.1f}",
                f"{p99:.1f}",
                f"{later:.1f}",
            ]
        )
        await asyncio.sleep(PATIENCE)
    return rows


def serve_and_measure(
    name: str, directory: Path, make: Callable[[int], Subject], seconds: float
) -> list[list[str]]:
    (port,) = free_ports(1)
    subject = make(port)
    command = [sys.executable, "-m", "mindspore_serving", "serve", str(directory), "--no-grpc"]
    command += ["--http-port", str(port), "--http-status-codes", "--num-parallel-workers", "1"]

    def is_ready() -> bool:
        outcomes = Outcomes()
        uvloop.run(ask(subject, subject.request(says_timeout=False), outcomes))
        return outcomes.statuses[200] == 1

    with running(f"overload_{name}", command, is_ready):
        return uvloop.run(measure(name, subject, seconds))


def _classic(port: int) -> Subject:
    path, body, num_clients = CLASSIC
    return Subject(port, path, json.dumps(body).encode(), num_clients)


def _language(model: str, num_clients: int, port: int) -> Subject:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True}
    return Subject(port, "/v1/completions", json.dumps(body).encode(), num_clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each overload")
    parser.add_argument("--model", type=Path, help="directory of a language model")
    parser.add_argument(
        "--clients",
        type=int,
        default=8,
        help="that find a model's peak, with 2 and 4 times as many",
    )
    parser.add_argument("--only", choices=("classic", "language"))
    options = parser.parse_args()
    rows = []
    if options.only != "language":
        place = HERE / "servables" / "slow_add_one"
        rows += serve_and_measure("classic", place, _classic, options.seconds)
    if options.model is not None and options.only != "classic":
        make = partial(_language, options.model.name, options.clients)
        rows += serve_and_measure("language", options.model, make, options.seconds)
    header = ["", "peak/s", "goodput/s", "ratio", "refused", "refused p50 ms", "p99 ms", "later"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
