"""A supervisor keeps a process, or a group of processes, running: start, wait, restart.

`core.backoff` decides whether and when to restart; this is the only loop around it.  Functions of
the role say how to start, and how to wait for the end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from mindspore_serving import log
from mindspore_serving.aio import is_set_within
from mindspore_serving.core import backoff
from mindspore_serving.errors import ResourceShortage, ServingError, StartError

T = TypeVar("T")


class NoRestart(StartError):
    """The process has ended, or cannot start, and no policy may restart it."""


class Supervisor(Generic[T]):
    """The restart loop of a process; `current` is the running one, None if there is none.

        new -> starting -> ready <-> restarting      `leave` or the policy ends the loop:
                             |            |
                             v            v
                          leaving ----> gone

    `reason` says how the last process ended, and `num_restarts` counts successful restarts.
    """

    def __init__(
        self,
        title: str,
        start: Callable[[], Awaitable[T]],
        wait: Callable[[T], Awaitable[str]],
        end: Callable[[T], None],
        *,
        policy: str = "always",
        on_change: Callable[[Any], None] = lambda supervisor: None,
    ) -> None:
        """Create the supervisor without starting a process.

        Args:
            title: name in logs.
            start: starts a process and returns it once it is ready.  Raises ResourceShortage if
                resources are short, NoRestart to give up, or another ServingError.
            wait: waits until a process has ended and returns how, or raises NoRestart.
            end: kills a process.
            policy: when to restart, see `Backoff`.
            on_change: called with the supervisor after a process became ready or ended, and when a
                restart is delayed.
        """
        self.title = title
        self.state = "new"
        self.reason = ""
        self.num_restarts = 0
        self.current: T | None = None
        self._start, self._wait, self._end = start, wait, end
        self._on_change = on_change
        self._backoff = backoff.Backoff(policy)
        self._next_start = 0.0  # by the loop's clock
        self._is_stopping = asyncio.Event()
        self._first: asyncio.Task[Any] | None = None  # during the first start
        self._task: asyncio.Task[None] | None = None

    @property
    def should_run(self) -> bool:
        """False once the process is no longer to be restarted."""
        return not self._is_stopping.is_set()

    def next_start_in(self) -> float:
        """Return the seconds until the next restart; 0 if a process runs or is being started."""
        return max(0.0, self._next_start - asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Start the process and keep it running.  Raises the errors of the first start."""
        self.state, self._first = "starting", asyncio.current_task()
        try:
            self.current = await self._start()
        except ServingError as error:
            self.state, self.reason = "gone", str(error)
            raise
        finally:
            self._first = None
        self.state = "ready"
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=self.title)
        self._on_change(self)

    def leave(self) -> None:
        """Stop restarting; the running process ends by itself, or the caller ends it."""
        self._is_stopping.set()
        if self.state in ("ready", "starting"):
            self.state = "leaving"
            self._on_change(self)

    def cancel(self) -> None:
        """Stop supervising and cancel a start in progress; a running process is left alone."""
        self._is_stopping.set()
        if task := self._first or self._task:
            task.cancel()

    async def join(self) -> None:
        """Wait until the supervisor has ended; return at once if it never started."""
        if task := self._first or self._task:
            await asyncio.wait([task])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.current is not None:
                began = loop.time()
                self.reason = await self._wait(self.current)
                if not self.should_run:
                    break
                self.state = "restarting"
                self.current = await self._restart(loop.time() - began)
                if self.current is not None:
                    self._on_change(self)
        except NoRestart as error:
            self.reason = str(error)
        self.state = "gone"
        self._on_change(self)

    async def _restart(self, ran_for: float) -> T | None:
        """Start processes until one is ready and return it; None to give up, or when stopping.

        `ran_for` is the lifetime of the last process in seconds.
        """
        delay = self._died(ran_for)
        while delay is not None and not await self._is_stopping_within(delay):
            try:
                current = await self._start()
            except NoRestart as error:
                log.error("%s cannot be restarted: %s", self.title, error)
                raise
            except ResourceShortage as error:  # not its fault: does not count as a death
                delay = self._wait_for_resources(error, delay)
            except ServingError as error:
                self.reason = str(error)
                delay = self._died(0.0)
            else:
                self.num_restarts += 1
                self.state = "ready" if self.should_run else "leaving"
                if not self.should_run:
                    self._end(current)  # it has got no work yet
                return current
        return None

    def _died(self, ran_for: float) -> float | None:
        """Return the seconds to wait before the restart; None to give up."""
        delay = self._backoff.died(ran_for) if self.should_run else None
        if delay is not None:
            log.warning("%s died (%s), restarting in %g s", self.title, self.reason, delay)
        elif self.should_run:
            policy = self._backoff.policy
            log.error("gave up %s (restart_policy %s): %s", self.title, policy, self.reason)
        self._on_change(self)
        return delay

    def _wait_for_resources(self, error: ResourceShortage, delay: float) -> float:
        """Return the seconds until the next attempt; `delay` is the wait before the last one."""
        delay = min(backoff.MAX_DELAY, max(backoff.FIRST_DELAY, 2 * delay))
        log.warning("%s: %s; trying again in %g s", self.title, error, delay)
        return delay

    async def _is_stopping_within(self, delay: float) -> bool:
        """Sleep for `delay` seconds, or less when stopping; return whether it is stopping."""
        self._next_start = asyncio.get_running_loop().time() + delay
        await is_set_within(delay, self._is_stopping)
        return not self.should_run
