"""Supervisor of one worker: keeps it running, and says whether requests can wait for it.

`process.supervisor` is the loop; this adds what only workers have.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from mindspore_serving.core import backoff
from mindspore_serving.errors import NoFreeMachine, ResourceShortage, ServingError, StartError
from mindspore_serving.ipc.status import loaded, loading_text
from mindspore_serving.master.link import Link
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import Supervisor

FIRST_PATIENCE, PATIENCE = 300.0, 10.0  # seconds to wait for a machine, at first and later


class WorkerSupervisor(Supervisor[Link]):
    """Supervisor of one replica: its current worker, and the next one when that dies.

    `on_change` is called when a worker starts, ends, or is delayed.  Without `is_awaited`, no
    request waits for a restart: that of a gang takes as long as its agents need.  `reason` has the
    end of the worker's log, which is not for clients; `last_exit` is for them.
    """

    def __init__(
        self,
        title: str,
        start: Callable[[], Awaitable[Link]],
        on_change: "Callable[[WorkerSupervisor], None]",
        policy: str = "always",
        *,
        is_awaited: bool = True,
        number: int = 0,
    ) -> None:
        super().__init__(
            title,
            self._start_worker,
            self._wait_for_end,
            lambda link: link.end_unused(),
            policy=policy,
            on_change=on_change,
        )
        self.number = number  # of the worker in its servable
        self.last_exit = ""
        self.first_link: Link | None = None  # to its first worker, also while that loads
        self.is_added = False  # by autoscaling: no request waits for its start
        self._launch = start
        self._is_awaited = is_awaited
        self._has_no_machine = False  # no machine had room for PATIENCE seconds

    @property
    def link(self) -> Link | None:
        """Current worker, or the last one."""
        return self.current

    @property
    def condition(self) -> str:
        """State of the worker; of a running worker also "silent" or "unready".

        "silent" has no heartbeats, "unready" has a model that cannot compute now.
        """
        if self.state != "ready" or self.link is None:
            return self.state
        if self.link.is_silent:
            return "silent"
        return "unready" if self.link.engine_metrics.unready else self.state

    @property
    def share_loaded(self) -> float:
        """Share of the servable that the first worker has loaded, from 0 to 1."""
        if self.link is not None:
            return 1.0
        return 0.0 if self.first_link is None else loaded(self.first_link.status)

    @property
    def loading_text(self) -> str:
        """Text of what the first worker does to load the servable; "" if unknown."""
        if self.link is not None or self.first_link is None:
            return ""
        return loading_text(self.first_link.status)

    def ready_in(self) -> float | None:
        """Return the seconds until a worker runs or starts.

        None if none will start, or if workers keep dying.
        """
        is_failing = self._backoff.is_failing or self._has_no_machine or not self._is_awaited
        is_failing = is_failing and self.state == "restarting"
        if not self.should_run or self.state == "gone" or is_failing:
            return None
        return self.next_start_in()

    @property
    def patience(self) -> float:
        """Seconds for which the next start may wait for a machine with room."""
        if self.is_added:
            return 0.0
        return FIRST_PATIENCE if self.state == "starting" else PATIENCE

    @property
    def is_scaling_up(self) -> bool:
        """True while its first worker starts, if autoscaling has added it."""
        return self.is_added and self.state in ("new", "starting")

    def num_parts(self) -> int:
        """Return the number of parts that the worker has."""
        return 0 if self.link is None else len(self.link.parts)

    async def start(self) -> None:
        """Start like `Supervisor.start`.  Raises StartError with the title."""
        try:
            await super().start()
        except ServingError as error:
            raise StartError(f"{self.title}: {error}") from error

    async def stop(self, grace: float) -> None:
        """End the worker: ask it to exit, wait at most `grace` seconds, then kill it."""
        self.leave()
        if self._task is None:
            return
        if self.link is not None and not self.link.closed.done():
            if not self.link.is_silent:  # a silent worker would not read the message
                self.link.ask_to_exit()
                await asyncio.wait([self.link.closed], timeout=grace)
            _kill(self.link)
        await self.join()

    async def _start_worker(self) -> Link:
        link = await self._launch()
        self._has_no_machine = False
        return link

    async def _wait_for_end(self, link: Link) -> str:
        await link.closed
        self.state = "restarting" if self.should_run else "leaving"
        _kill(link)
        status = await link.process.wait()
        tail = link.process.log_tail() if status not in (0, -signal.SIGKILL) else ""
        self.last_exit = link.end_reason or exit_text(status)
        return f"{self.last_exit}{': ' + tail if tail else ''}"

    def _wait_for_resources(self, error: ResourceShortage, delay: float) -> float:
        """Return the delay before the next start after a shortage of resources.

        If no machine had room, the launcher has waited already, so requests are no longer kept
        waiting.
        """
        if not isinstance(error, NoFreeMachine):
            return super()._wait_for_resources(error, delay)
        self._has_no_machine = True
        self.last_exit = "no machine has a place for them"
        self._on_change(self)
        return backoff.FIRST_DELAY


def _kill(link: Link) -> None:
    link.process.kill()
