"""Keeps one worker running: start, watch, restart with back-off, give up with the reason.

`Backoff` decides; `WorkerSupervisor` is the loop around it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.loading import exit_text
from mindspore_serving.errors import ServingError, StartError

QUICK = 10.0  # seconds; a worker that dies earlier after its start died quickly
MOST_QUICK_DEATHS = 5  # in a row
_FIRST_DELAY, _MOST_DELAY = 0.25, 30.0


@dataclass(slots=True)
class Backoff:
    """When to restart: at once after a first death, later after each quick one in a row."""

    num_quick: int = 0

    def died(self, ran_for: float) -> float | None:
        """Seconds to wait before the restart; None to give up.  `ran_for` is in seconds."""
        if ran_for >= QUICK:
            self.num_quick = 0
            return 0.0
        self.num_quick += 1
        if self.num_quick >= MOST_QUICK_DEATHS:
            return None
        if self.num_quick == 1:
            return 0.0
        return float(min(_MOST_DELAY, _FIRST_DELAY * 2 ** (self.num_quick - 2)))


class WorkerSupervisor:
    """One replica that is to run: its worker now, and the next one when that dies."""

    def __init__(
        self,
        title: str,
        start: Callable[[], Awaitable[Link]],
        on_gone: "Callable[[WorkerSupervisor], None]",
    ) -> None:
        self.title = title  # "servable name:add, device id:0"
        self.state = "new"
        self.reason = ""  # with the end of the worker's log: not for clients
        self.last_exit = ""
        self.link: Link | None = None
        self._start = start
        self._on_gone = on_gone
        self._is_unwanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The first start.  Raises StartError; afterwards the worker is kept running."""
        self.state = "starting"
        try:
            self.link = await self._start()
        except ServingError as error:
            self.state, self.reason = "gone", str(error)
            raise StartError(f"{{{self.title}, <{error}>}}") from error
        self.state = "ready"
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=self.title)

    def leave(self) -> None:
        """It is to end, and not to be restarted."""
        self._is_unwanted.set()
        if self.state in ("ready", "starting"):
            self.state = "leaving"

    async def stop(self, grace: float) -> None:
        """End the worker: ask, wait at most `grace` seconds, then kill."""
        self.leave()
        if self._task is None:
            return
        if self.link is not None and not self.link.closed.done():
            self.link.ask_to_exit()
            await asyncio.wait([self.link.closed], timeout=grace)
            self.link.process.kill()
        await asyncio.wait([self._task])

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be kept running."""
        return not self._is_unwanted.is_set()

    async def _supervise(self) -> None:
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        while self.link is not None:
            started = loop.time()
            self.reason = await self._watch(self.link)
            if not self.is_wanted:
                break
            delay = backoff.died(loop.time() - started)
            if delay is None:
                log.error(
                    "{%s} is given up after quick deaths in a row: %s", self.title, self.reason
                )
                break
            log.warning("{%s} died (%s), restarting in %g s", self.title, self.reason, delay)
            self.link = await self._restart(delay, backoff)
        self.state = "gone"
        self._on_gone(self)

    async def _watch(self, link: Link) -> str:
        """Until the worker has ended; returns why."""
        await link.closed
        self.state = "restarting" if self.is_wanted else "leaving"
        link.process.kill()
        status = await link.process.wait()
        tail = link.process.log_tail() if status not in (0, -signal.SIGKILL) else ""
        self.last_exit = exit_text(status)
        return f"{self.last_exit}{': ' + tail if tail else ''}"

    async def _restart(self, delay: float, backoff: Backoff) -> Link | None:
        """The next worker; None to give up or if it is not wanted any more."""
        while not await self._is_unwanted_within(delay):
            try:
                link = await self._start()
            except ServingError as error:
                self.reason = str(error)
                next_delay = backoff.died(0.0)
                if next_delay is None:
                    log.error("{%s} is given up: %s", self.title, self.reason)
                    return None
                delay = next_delay
            else:
                self.state = "ready" if self.is_wanted else "leaving"
                if not self.is_wanted:
                    link.process.kill()  # nothing was given to it yet
                return link
        return None

    async def _is_unwanted_within(self, delay: float) -> bool:
        """Sleep for `delay` seconds, or until it is not wanted; whether it is not."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_unwanted.wait(), delay)
        return not self.is_wanted
