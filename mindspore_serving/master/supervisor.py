"""Keeps one worker running, and says whether requests may wait for it.

`process.supervisor` is the loop; here is what workers have beside other processes.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from mindspore_serving.core import backoff
from mindspore_serving.errors import NoPlace, ResourceShortage, ServingError, StartError
from mindspore_serving.ipc.status import loaded
from mindspore_serving.master.link import Link
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import Supervisor

FIRST_PATIENCE, PATIENCE = 300.0, 10.0  # seconds to wait for a place, at first and later


class WorkerSupervisor(Supervisor[Link]):
    """One replica that is to run: its worker now, and the next one when that dies.

    `on_change` is called when a worker runs, or runs no more, or later than was expected.  Without
    `is_awaited`, nobody waits for a restart: it takes as long as others want.  `reason` has the end
    of the worker's log: it is not for clients; `last_exit` is.
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
        super().__init__(
            title,
            self._start_worker,
            self._wait_for_end,
            _kill,
            policy=policy,
            on_change=on_change,
        )
        self.last_exit = ""
        self.first_link: Link | None = None  # while its first worker loads
        self.is_added = False  # by autoscaling: nobody waits for its start
        self._launch = start
        self._is_awaited = is_awaited
        self._has_no_place = False  # on any machine, for PATIENCE seconds

    @property
    def link(self) -> Link | None:
        """The worker that runs, or that ran last."""
        return self.current

    @property
    def condition(self) -> str:
        """The state; of a worker that runs "silent" if it gives no heartbeat, "unready" if its
        model cannot compute now.
        """
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
        if not self.should_run or self.state == "gone" or is_failing:
            return None
        return self.next_start_in()

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

    async def start(self) -> None:
        """As `Supervisor.start`.  Raises StartError with the title."""
        try:
            await super().start()
        except ServingError as error:
            raise StartError(f"{self.title}: {error}") from error

    async def stop(self, grace: float) -> None:
        """End the worker: ask, wait at most `grace` seconds, then kill."""
        self.leave()
        if self._task is None:
            return
        if self.link is not None and not self.link.closed.done():
            if not self.link.is_silent:  # else it would not see it
                self.link.ask_to_exit()
                await asyncio.wait([self.link.closed], timeout=grace)
            _kill(self.link)
        await self.join()

    async def _start_worker(self) -> Link:
        link = await self._launch()
        self._has_no_place = False
        return link

    async def _wait_for_end(self, link: Link) -> str:
        await link.closed
        self.state = "restarting" if self.should_run else "leaving"
        _kill(link)
        status = await link.process.wait()
        tail = link.process.log_tail() if status not in (0, -signal.SIGKILL) else ""
        self.last_exit = link.why_ended or exit_text(status)
        return f"{self.last_exit}{': ' + tail if tail else ''}"

    def _wait_for_resources(self, error: ResourceShortage, delay: float) -> float:
        """As `Supervisor._wait_for_resources`; a machine with room has been waited for already, and
        nobody else is to wait for one.
        """
        if not isinstance(error, NoPlace):
            return super()._wait_for_resources(error, delay)
        self._has_no_place = True
        self.last_exit = "no machine has a place for them"
        self._on_change(self)
        return backoff.FIRST_DELAY


def _kill(link: Link) -> None:
    link.process.kill()
