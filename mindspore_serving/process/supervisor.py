"""Keeps a process, or a group of processes, running: starts it, waits for its end, starts the next.

`core.backoff` decides when the next one is started, and whether; this is the only loop around it.
How one is started, and what its end is, is up to the functions of its role.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from mindspore_serving import log
from mindspore_serving.core import backoff
from mindspore_serving.errors import ResourceShortage, ServingError, StartError

T = TypeVar("T")


class EndedForGood(StartError):
    """It has ended, or cannot start, and is not to be started again under any policy."""


class Supervisor(Generic[T]):
    """The life of what is to run under one title: `current` now, and the next one after its end.

    `state` is "new", "starting", "ready", "restarting", "leaving" or "gone", `reason` says how the
    last one ended, and `num_restarts` counts those that ran in place of others.
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
        """Start nothing yet.

        Args:
            title: names it in logs.
            start: returns one that is ready.  Raises ResourceShortage if it failed only for want of
                room, EndedForGood if it need not be tried again, or another ServingError.
            wait: returns how one has ended, once it has, or raises EndedForGood.
            end: ends one now.
            policy: when to restart, as of `Backoff`.
            on_change: called with this when one runs, runs no more, or starts later than expected.
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
        self._is_unwanted = asyncio.Event()
        self._first: asyncio.Task[Any] | None = None  # while it starts the first one
        self._task: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be kept running."""
        return not self._is_unwanted.is_set()

    def next_start_in(self) -> float:
        """Return the seconds until the next one is started; 0 if one runs or starts now."""
        return max(0.0, self._next_start - asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Start the first one, and keep it running.  Raises what its start raises."""
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
        """Do not start it again: it ends by itself, or is ended by who calls this."""
        self._is_unwanted.set()
        if self.state in ("ready", "starting"):
            self.state = "leaving"
            self._on_change(self)

    def cancel(self) -> None:
        """Leave what runs alone, and give up a start that is under way."""
        self._is_unwanted.set()
        if task := self._first or self._task:
            task.cancel()

    async def join(self) -> None:
        """Wait until it is gone, or `cancel` has been heard; at once if it never ran."""
        if task := self._first or self._task:
            await asyncio.wait([task])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.current is not None:
                began = loop.time()
                self.reason = await self._wait(self.current)
                if not self.is_wanted:
                    break
                self.state = "restarting"
                self.current = await self._restart(loop.time() - began)
                if self.current is not None:
                    self._on_change(self)
        except EndedForGood as error:
            self.reason = str(error)
        self.state = "gone"
        self._on_change(self)

    async def _restart(self, ran_for: float) -> T | None:
        """Return the next one, behind one that ran for so many seconds; None to give up, or if it
        is not wanted any more.
        """
        delay = self._died(ran_for)
        while delay is not None and not await self._is_unwanted_within(delay):
            try:
                current = await self._start()
            except EndedForGood as error:
                log.error("%s cannot be started again: %s", self.title, error)
                raise
            except ResourceShortage as error:  # it has not died: there is no room for it now
                delay = self._wait_for_room(error, delay)
            except ServingError as error:
                self.reason = str(error)
                delay = self._died(0.0)
            else:
                self.num_restarts += 1
                self.state = "ready" if self.is_wanted else "leaving"
                if not self.is_wanted:
                    self._end(current)  # nothing was given to it yet
                return current
        return None

    def _died(self, ran_for: float) -> float | None:
        """Return the seconds to wait before the restart; None to give up."""
        delay = self._backoff.died(ran_for) if self.is_wanted else None
        if delay is not None:
            log.warning("%s died (%s), restarting in %g s", self.title, self.reason, delay)
        elif self.is_wanted:
            policy = self._backoff.policy
            log.error("%s is given up (restart_policy %s): %s", self.title, policy, self.reason)
        self._on_change(self)
        return delay

    def _wait_for_room(self, error: ResourceShortage, delay: float) -> float:
        """Return the seconds until the start is tried again, `delay` after the last attempt."""
        delay = min(backoff.MOST_DELAY, max(backoff.FIRST_DELAY, 2 * delay))
        log.warning("%s: %s; trying again in %g s", self.title, error, delay)
        return delay

    async def _is_unwanted_within(self, delay: float) -> bool:
        """Sleep for `delay` seconds, or until it is not wanted; return whether it is not."""
        self._next_start = asyncio.get_running_loop().time() + delay
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_unwanted.wait(), delay)
        return not self.is_wanted
