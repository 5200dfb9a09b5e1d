"""Load of `bench`: requests from clients that send again when answered, or at a rate.

Every request becomes a `BenchOutcome`; none is left out or repeated.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter

from mindspore_serving.cli.bench_client import Connections, RequestFailed
from mindspore_serving.cli.bench_prompts import BenchPrompt
from mindspore_serving.cli.bench_protocols import AnswerError, BenchAnswer, Dialect


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """Outcome of one request, with times in seconds of one clock.

    It was `due` and then `sent`. `answer` is None if it failed; `failure` is then a kind and a
    text.
    """

    due: float
    sent: float
    ended: float
    answer: BenchAnswer | None
    failure: tuple[str, str] = ("", "")


@dataclass(slots=True)
class BenchRun:
    """All requests at one load.  `busy` is the CPU time of the client in seconds."""

    label: str
    outcomes: list[BenchOutcome] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Server and protocol that requests are sent to; `timeout` in seconds for an answer."""

    connections: Connections
    dialect: Dialect
    timeout: float


OnOutcome = Callable[[BenchOutcome], None]


async def ask(target: Target, prompt: BenchPrompt, due: float | None = None) -> BenchOutcome:
    """Send one request at once, and return its outcome."""
    dialect = target.dialect
    body, reader = dialect.to_body(prompt), dialect.to_reader()
    sent = perf_counter()
    due = sent if due is None else due
    try:
        await target.connections.post(dialect.path, body, reader, target.timeout)
        answer = reader.finish()
    except RequestFailed as error:
        return BenchOutcome(due, sent, perf_counter(), None, (error.kind, str(error)))
    except AnswerError as error:
        return BenchOutcome(due, sent, perf_counter(), None, ("failed answer", str(error)))
    except ValueError as error:
        return BenchOutcome(due, sent, perf_counter(), None, ("bad answer", str(error)))
    return BenchOutcome(due, sent, perf_counter(), answer)


async def by_clients(
    target: Target,
    prompts: Iterator[BenchPrompt],
    clients: int,
    count: float,
    on_outcome: OnOutcome,
    *,
    seconds: float = math.inf,
) -> BenchRun:
    """Send `count` requests from `clients`, each of which waits for its answer.

    After `seconds` no request is sent beyond the first of each client.
    """
    run = BenchRun(f"{clients} client{'s' * (clients > 1)}")
    due = _due(clients, count, perf_counter() + seconds)

    async def client() -> None:
        for _ in due:
            outcome = await ask(target, next(prompts))
            run.outcomes.append(outcome)
            on_outcome(outcome)

    with _measured(run):
        await asyncio.gather(*(client() for _ in range(int(min(clients, count)))))
    return run


async def at_times(
    target: Target,
    prompts: Iterator[BenchPrompt],
    arrivals: list[float],
    label: str,
    on_outcome: OnOutcome,
) -> BenchRun:
    """Send a request at each of the `arrivals`, seconds from now, without waiting for answers."""
    run = BenchRun(label)
    tasks = []

    async def send(prompt: BenchPrompt, due: float) -> None:
        outcome = await ask(target, prompt, due)
        run.outcomes.append(outcome)
        on_outcome(outcome)

    with _measured(run):
        start = perf_counter()
        for arrival in arrivals:
            await asyncio.sleep(max(start + arrival - perf_counter(), 0))
            tasks.append(asyncio.create_task(send(next(prompts), start + arrival)))
        await asyncio.gather(*tasks)
    return run


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return the times of `count` independent requests, `rate` per second on average."""
    draw = random.Random(f"arrivals {seed}")
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


def _due(clients: int, count: float, end: float) -> Iterator[int]:
    number = 0
    while number < count and (number < clients or perf_counter() < end):
        yield number
        number += 1


@contextmanager
def _measured(run: BenchRun) -> Iterator[None]:
    """Measure wall and CPU time of the block into `run`."""
    wall, busy = perf_counter(), time.thread_time()
    yield
    run.seconds, run.busy = perf_counter() - wall, time.thread_time() - busy
