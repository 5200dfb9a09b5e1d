"""Liveness of a worker: its heartbeats, and stages or steps that take too long.

`HeartbeatMonitor` decides without a clock: elapsed time is an argument.  `watch` is its loop.
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

INTERVAL = 1.0  # seconds between two checks of a worker; less if a timeout is short
MAX_TIMEOUTS = 3  # without a heartbeat before a worker is killed


@dataclass(slots=True)
class HeartbeatMonitor:
    """Monitor of one worker's heartbeats; with `timeout` 0 (seconds) the worker is always alive."""

    timeout: float
    silent_for: float = 0.0  # seconds
    _count: int | None = None

    def update(self, count: int | None, elapsed: float) -> None:
        """Update the number of heartbeats, `elapsed` seconds after the last update."""
        if count is None or count != self._count:
            self._count, self.silent_for = count, 0.0
        else:
            self.silent_for += elapsed

    @property
    def is_silent(self) -> bool:
        """True if the worker is to get no parts."""
        return 0 < self.timeout <= self.silent_for

    @property
    def is_dead(self) -> bool:
        """True if the worker is to be killed."""
        return 0 < MAX_TIMEOUTS * self.timeout <= self.silent_for


def interval(deployment: Deployment) -> float:
    """Return the seconds between two checks of a worker of `deployment`."""
    timeouts = (deployment.heartbeat_timeout, deployment.stage_timeout, deployment.step_timeout)
    return min([INTERVAL, *(timeout / 4 for timeout in timeouts if timeout)])


def find_overdue(
    running: Iterable[Running], deployment: Deployment, now: float
) -> tuple[Running, str] | None:
    """Return the first stage or step that runs for too long, and a description of it."""
    for stage in running:
        is_step = stage.lane == STEPS
        limit = deployment.step_timeout if is_step else deployment.stage_timeout
        if 0 < limit < now - stage.since:
            name = "a step of the language model" if is_step else f"stage {stage.stage + 1}"
            option = "step_timeout" if is_step else "stage_timeout"
            return stage, f"{name} ran for over {limit:g} s ({option})"
    return None


async def watch(
    link: Link, deployment: Deployment, on_change: Callable[[Link, HeartbeatMonitor], None]
) -> None:
    """Check a worker until it has ended, and kill it if it is dead or runs something for too long.

    `on_change` is called when its heartbeats stop and when they resume.  Also forwards changes of
    the log level and trims the arena.
    """
    monitor, seconds = HeartbeatMonitor(deployment.heartbeat_timeout), interval(deployment)
    last = time.monotonic()
    trim_at = last + seconds
    while not await _is_closed_within(link, max(0.0, min(seconds, trim_at - time.monotonic()))):
        now = time.monotonic()
        was_silent = monitor.is_silent
        # If this process was stopped for a while, the worker is not to blame.
        monitor.update(status.beats(link.status), min(now - last, 2 * seconds))
        last = now
        link.set_log_level(log.changed_level())
        overdue = find_overdue(link.running(), deployment, now)
        if overdue is not None:
            link.end(overdue[1], overdue[0])
        elif monitor.is_dead:
            link.end(f"no heartbeat for {monitor.silent_for:.0f} s")
        elif monitor.is_silent != was_silent:
            on_change(link, monitor)
        if now >= trim_at:
            trim_at = now + link.trim()


async def _is_closed_within(link: Link, seconds: float) -> bool:
    await asyncio.wait([link.closed], timeout=seconds)
    return link.closed.done()
