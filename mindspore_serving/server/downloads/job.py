"""A download with the clients that follow it; lives on the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from mindspore_serving.core.client_models import PullProgress


class PullJob:
    """A download that several clients may follow, then the loading of its model."""

    def __init__(self, work: "Callable[[PullJob], Coroutine[Any, Any, None]]") -> None:
        self.progress = PullProgress("pulling manifest")
        self.is_loading = self.is_stopped = False
        self._followers = 0
        self._changed = asyncio.Event()
        self.task = asyncio.ensure_future(work(self))
        self.task.add_done_callback(lambda _: self._changed.set())

    def show(self, progress: PullProgress) -> None:
        """Set the step that followers get next."""
        self.progress = progress
        self._changed.set()

    async def follow(self) -> AsyncIterator[PullProgress]:
        """Iterate over the steps; the last follower that leaves stops the download.

        Loading goes on to its end. Raises the error of the job.
        """
        self._followers += 1
        shown = None
        try:
            while not self.task.done():
                self._changed.clear()
                if self.progress != shown:
                    shown = self.progress
                    yield shown
                    continue
                await self._changed.wait()
            self.task.result()
        finally:
            self._followers -= 1
            if not self._followers and not self.is_loading:
                self.is_stopped = True
                self.task.cancel()
