"""Keeps one worker running: start, watch, restart with back-off, by the operator's policy.

`core.backoff` decides; `WorkerSupervisor` is the loop around it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mindspore_serving import log
from mindspore_serving.core import backoff
from mindspore_serving.errors import NoPlace, ResourceShortage, ServingError, StartError
from mindspore_serving.ipc.status import loaded
from mindspore_serving.master.link import Link
from mindspore_serving.process.child import exit_text

FIRST_PATIENCE, PATIENCE = 300.0, 10.0  # seconds to wait for a place, at first and later


class WorkerSupervisor:
    """One replica that is to run: its worker now, and the next one when that dies.

    `on_change` is called when a worker runs, or runs no more, or later than was expected.  Without
    `is_awaited`, nobody waits for a restart: it takes as long as others want.
    """

    def __init__(
        self,
        title: str,
        start: Callable[[], Awaitable[Link]],
        on_change: "Callable[[WorkerSupervisor], None]",
        policy: str = "always",
        *,
        is_awaited: bool = True,
    ) -> None:
        self.title = title  # "servable add, device 0"
        self.state = "new"
        self.reason = ""  # with the end of the worker's log: not for clients
        self.last_exit = ""
        self.link: Link | None = None
        self.num_restarts = 0  # workers that ran in place of others
        self.first_link: Link | None = None  # while its first worker loads
        self._start = start
        self._on_change = on_change
        self._backoff = backoff.Backoff(policy)
        self._is_awaited = is_awaited
        self._has_no_place = False  # on any machine, for PATIENCE seconds
        self._next_start = 0.0  # by the loop's clock
        self.is_added = False  # by autoscaling: nobody waits for its start
        self._is_unwanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def condition(self) -> str:
        """The state; of a worker that runs "silent" if it gives no heartbeat, "unready" if its
        model cannot compute now."""
        if self.state != "ready" or self.link is None:
            return self.state
        if self.link.is_silent:
            return "silent"
        return "unready" if self.link.numbers.unready else self.state

    @property
    def share_loaded(self) -> float:
        """How much its first worker has loaded, from 0 to 1."""
        if self.link is not None:
            return 1.0
        return 0.0 if self.first_link is None else loaded(self.first_link.status)

    def ready_in(self) -> float | None:
        """The seconds until a worker runs or starts; None if none will, or it dies all the time."""
        is_failing = self._backoff.is_failing or self._has_no_place or not self._is_awaited
        is_failing = is_failing and self.state == "restarting"
        if not self.is_wanted or self.state == "gone" or is_failing:
            return None
        return self.next_start_in()

    def next_start_in(self) -> float:
        """The seconds until the next worker is started; 0 if one runs or starts now."""
        return max(0.0, self._next_start - asyncio.get_running_loop().time())

    async def start(self) -> None:
        """The first start.  Raises StartError; afterwards the worker is kept running."""
        self.state = "starting"
        try:
            self.link = await self._start()
        except ServingError as error:
            self.state, self.reason = "gone", str(error)
            raise StartError(f"{self.title}: {error}") from error
        self.state = "ready"
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=self.title)
        self._on_change(self)

    def leave(self) -> None:
        """It is to end, and not to be restarted."""
        self._is_unwanted.set()
        if self.state in ("ready", "starting"):
            self.state = "leaving"
            self._on_change(self)

    @property
    def patience(self) -> float:
        """The seconds that its next start may wait for a machine with room."""
        if self.is_added:
            return 0.0
        return FIRST_PATIENCE if self.state == "starting" else PATIENCE

    @property
    def is_coming(self) -> bool:
        """Whether its first worker starts, which was added to others."""
        return self.is_added and self.state in ("new", "starting")

    def num_parts(self) -> int:
        """How many parts of requests its worker has."""
        return 0 if self.link is None else len(self.link.parts)

    async def stop(self, grace: float) -> None:
        """End the worker: ask, wait at most `grace` seconds, then kill."""
        self.leave()
        if self._task is None:
            return
        if self.link is not None and not self.link.closed.done():
            if not self.link.is_silent:  # else it would not see it
                self.link.ask_to_exit()
                await asyncio.wait([self.link.closed], timeout=grace)
            self.link.process.kill()
        await asyncio.wait([self._task])

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be kept running."""
        return not self._is_unwanted.is_set()

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while self.link is not None:
            started = loop.time()
            self.reason = await self._watch(self.link)
            if not self.is_wanted:
                break
            self.link = await self._restart(loop.time() - started)
            if self.link is not None:
                self._on_change(self)
        self.state = "gone"
        self._on_change(self)

    async def _watch(self, link: Link) -> str:
        """Until the worker has ended; returns why."""
        await link.closed
        self.state = "restarting" if self.is_wanted else "leaving"
        link.process.kill()
        status = await link.process.wait()
        tail = link.process.log_tail() if status not in (0, -signal.SIGKILL) else ""
        self.last_exit = link.why_ended or exit_text(status)
        return f"{self.last_exit}{': ' + tail if tail else ''}"

    async def _restart(self, ran_for: float) -> Link | None:
        """The next worker, behind one that ran so many seconds; None to give up or if it is not
        wanted any more."""
        delay = self._died(ran_for)
        while delay is not None and not await self._is_unwanted_within(delay):
            try:
                link = await self._start()
            except NoPlace:
                delay = self._has_waited()
            except ResourceShortage as error:  # it has not died: there is no room for it now
                delay = min(backoff.MOST_DELAY, max(backoff.FIRST_DELAY, 2 * delay))
                log.warning("%s: %s; trying again in %g s", self.title, error, delay)
            except ServingError as error:
                self.reason = str(error)
                delay = self._died(0.0)
            else:
                self._has_no_place = False
                self.num_restarts += 1
                self.state = "ready" if self.is_wanted else "leaving"
                if not self.is_wanted:
                    link.process.kill()  # nothing was given to it yet
                return link
        return None

    def _died(self, ran_for: float) -> float | None:
        """Seconds to wait before the restart; None to give up."""
        delay = self._backoff.died(ran_for) if self.is_wanted else None
        if delay is not None:
            log.warning("%s died (%s), restarting in %g s", self.title, self.reason, delay)
        elif self.is_wanted:
            policy = self._backoff.policy
            log.error("%s is given up (restart_policy %s): %s", self.title, policy, self.reason)
        self._on_change(self)
        return delay

    def _has_waited(self) -> float:
        """Nobody else is to wait for a machine with room; seconds until it is waited for again."""
        self._has_no_place = True
        self.last_exit = "no machine has a place for them"
        self._on_change(self)
        return backoff.FIRST_DELAY

    async def _is_unwanted_within(self, delay: float) -> bool:
        """Sleep for `delay` seconds, or until it is not wanted; whether it is not."""
        self._next_start = asyncio.get_running_loop().time() + delay
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_unwanted.wait(), delay)
        return not self.is_wanted
