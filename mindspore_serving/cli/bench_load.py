"""How `bench` sends requests: from clients that send again when answered, or at a rate.

Every request becomes a `BenchOutcome`; nothing is left out, nothing is repeated.
"""

import asyncio
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
    """One request, times in seconds of one clock.

    It was `due` and then `sent`; `answer` is None if it failed, by `failure`, a kind and a text.
    """

    due: float
    sent: float
    ended: float
    answer: BenchAnswer | None
    failure: tuple[str, str] = ("", "")


@dataclass(slots=True)
class BenchRun:
    """All requests at one load.  `busy` are the CPU seconds that the client took."""

    label: str
    outcomes: list[BenchOutcome] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go; `timeout` in seconds for a whole answer."""

    connections: Connections
    dialect: Dialect
    timeout: float


Seen = Callable[[BenchOutcome], None]


async def ask(target: Target, prompt: BenchPrompt, due: float | None = None) -> BenchOutcome:
    """One request, at once."""
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
    target: Target, prompts: Iterator[BenchPrompt], clients: int, count: int, seen: Seen
) -> BenchRun:
    """`count` requests by `clients`, of which each waits for its answer."""
    run = BenchRun(f"{clients} client{'s' * (clients > 1)}")
    due = iter(range(count))

    async def client() -> None:
        for _ in due:
            outcome = await ask(target, next(prompts))
            run.outcomes.append(outcome)
            seen(outcome)

    with _measured(run):
        await asyncio.gather(*(client() for _ in range(min(clients, count))))
    return run


async def at_times(
    target: Target, prompts: Iterator[BenchPrompt], arrivals: list[float], label: str, seen: Seen
) -> BenchRun:
    """A request at each of the `arrivals`, seconds from now, however many wait for answers."""
    run = BenchRun(label)
    tasks = []

    async def one(prompt: BenchPrompt, due: float) -> None:
        outcome = await ask(target, prompt, due)
        run.outcomes.append(outcome)
        seen(outcome)

    with _measured(run):
        start = perf_counter()
        for arrival in arrivals:
            await asyncio.sleep(max(start + arrival - perf_counter(), 0))
            tasks.append(asyncio.create_task(one(next(prompts), start + arrival)))
        await asyncio.gather(*tasks)
    return run


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """When `count` requests come, `rate` per second on average, independent of each other."""
    draw = random.Random(f"arrivals {seed}")
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


@contextmanager
def _measured(run: BenchRun) -> Iterator[None]:
    """Measures the block into `run`."""
    wall, busy = perf_counter(), time.thread_time()
    yield
    run.seconds, run.busy = perf_counter() - wall, time.thread_time() - busy
