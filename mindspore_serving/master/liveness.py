"""Whether a worker lives, by its heartbeats, and whether what it runs takes too long.

`Pulse` decides, without a clock: how much time passes is an argument.  `watch` is the loop around.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.ipc import status
from mindspore_serving.ipc.status import STEPS, Running
from mindspore_serving.master.link import Link

INTERVAL = 1.0  # seconds between two looks at a worker; less where a timeout is short
MOST_TIMEOUTS = 3  # of silence, after which a worker is ended


@dataclass(slots=True)
class Pulse:
    """Of one worker; with a `timeout` (seconds) of 0 it always lives."""

    timeout: float
    silent_for: float = 0.0  # seconds
    _count: int | None = None

    def see(self, count: int | None, elapsed: float) -> None:
        """`count` heartbeats were counted by now, `elapsed` seconds after the last look."""
        if count is None or count != self._count:
            self._count, self.silent_for = count, 0.0
        else:
            self.silent_for += elapsed

    @property
    def is_silent(self) -> bool:
        """Whether it is to get no work."""
        return 0 < self.timeout <= self.silent_for

    @property
    def is_dead(self) -> bool:
        """Whether it is to be ended."""
        return 0 < MOST_TIMEOUTS * self.timeout <= self.silent_for


def interval(deployment: Deployment) -> float:
    """Seconds between two looks at a worker of `deployment`."""
    timeouts = (deployment.heartbeat_timeout, deployment.stage_timeout, deployment.step_timeout)
    return min([INTERVAL, *(timeout / 4 for timeout in timeouts if timeout)])


def find_overdue(
    running: Iterable[Running], deployment: Deployment, now: float
) -> tuple[Running, str] | None:
    """The first of what a worker runs that takes too long, and what to say of it."""
    for one in running:
        is_step = one.lane == STEPS
        limit = deployment.step_timeout if is_step else deployment.stage_timeout
        if 0 < limit < now - one.since:
            if is_step:
                return one, f"a step of the language model ran for over {limit:g} s (step_timeout)"
            return one, f"stage {one.stage + 1} ran for over {limit:g} s (stage_timeout)"
    return None


async def watch(
    link: Link, deployment: Deployment, on_pulse: Callable[[Link, Pulse], None]
) -> None:
    """Look at a worker until it has ended; `on_pulse` is called when it falls silent or is back.
    Ends it when it is dead, or runs something for too long; has it log what we do.
    """
    pulse, seconds = Pulse(deployment.heartbeat_timeout), interval(deployment)
    last = time.monotonic()
    trim_at = last + seconds
    while not await _is_closed_within(link, max(0.0, min(seconds, trim_at - time.monotonic()))):
        now = time.monotonic()
        was_silent = pulse.is_silent
        # If we were stopped ourselves for a while, the worker is not to blame.
        pulse.see(status.beats(link.status), min(now - last, 2 * seconds))
        last = now
        link.set_log_level(log.changed_level())
        overdue = find_overdue(link.running(), deployment, now)
        if overdue is not None:
            link.end(overdue[1], overdue[0])
        elif pulse.is_dead:
            link.end(f"no heartbeat for {pulse.silent_for:.0f} s")
        elif pulse.is_silent != was_silent:
            on_pulse(link, pulse)
        if now >= trim_at:
            trim_at = now + link.trim()


async def _is_closed_within(link: Link, seconds: float) -> bool:
    await asyncio.wait([link.closed], timeout=seconds)
    return link.closed.done()
