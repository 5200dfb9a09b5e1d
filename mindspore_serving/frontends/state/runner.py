"""The runner of batches: reads their lines, runs the requests, and keeps each result once.

A line is removed in the transaction that adds its result, so after a crash exactly the lines
without a result run again.  Knows no protocol.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from starlette.types import ASGIApp

from mindspore_serving import log
from mindspore_serving.aio import is_set_within
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.state.batch import (
    KINDS,
    Batch,
    BatchProblem,
    BatchProgress,
    LineFormat,
    decode,
)
from mindspore_serving.frontends.state.batch_writer import BatchWriter
from mindspore_serving.frontends.state.calls import run_line
from mindspore_serving.frontends.state.claims import run_claimed
from mindspore_serving.frontends.state.database import Piece
from mindspore_serving.frontends.state.reading_lines import read_lines
from mindspore_serving.frontends.state.store import StateLost, StateStore, StorageFull

_NUM_READ = 64  # lines
_NUM_SHOWN = 100  # batches
_CODES = (
    (StorageFull, "storage_full"),
    (Overloaded, "storage_limit"),
    (InvalidInputs, "invalid_file"),
)
_SWEEP_SECONDS = 600.0  # between removals of what has expired
_SHARED_SWEEP_SECONDS = 5.0  # the same, where other servers may have added or left batches


class BatchRunner:
    """Runs the unfinished batches of `store`.

    `formats` has the lines of each kind of batch.  At most `limits.max_batch_running` requests run
    at once; the batches of an owner run one after another, those of several owners side by side.
    """

    def __init__(
        self,
        store: StateStore,
        formats: Mapping[str, LineFormat],
        limits: LanguageLimits,
        now: Callable[[], float] = time.time,
        *,
        priority: int = BACKGROUND,
        sweep: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a runner of requests of this `priority`; `now` returns seconds since 1970.

        `sweep` is called when what has expired is removed.
        """
        self._priority, self._sweep = priority, sweep
        self._store, self._formats, self._limits, self._now = store, formats, limits, now
        self._app: ASGIApp | None = None
        self._slots = asyncio.Semaphore(limits.max_batch_running)
        self._owners: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stops: dict[str, asyncio.Event] = {}  # of running batches; set if they are cancelled
        self._failed: set[str] = set()  # batches whose failure could not be stored
        self._loop: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True from `start` to `close`."""
        return self._loop is not None

    def start(self, app: ASGIApp) -> None:
        """Run the unfinished batches, and those that are added, on the routes of `app`."""
        self._app = app
        self._loop = asyncio.create_task(self._follow())

    def wake(self, cancelled: str = "") -> None:
        """Look for new batches, and for the batch that was `cancelled`."""
        if cancelled in self._stops:
            self._stops[cancelled].set()
        self._changed.set()

    async def progress(self) -> list[BatchProgress]:
        """Return the progress of the unfinished batches of all owners, the oldest first."""
        now = int(self._now())
        return [
            BatchProgress(
                kind=batch.kind,
                path=batch.path,
                status=batch.status,
                total=batch.counts.total,
                done=batch.counts.num_ended,
                failed=batch.counts.failed,
                age=max(0, now - batch.created),
            )
            for batch in (await self._unfinished())[:_NUM_SHOWN]
        ]

    async def close(self) -> None:
        """End all work; requests without a result run again at the next start."""
        if self._loop is None:
            return
        self._loop.cancel()
        await asyncio.wait([self._loop])
        self._loop = None
        running = [*self._owners.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            try:
                for batch in await self._unfinished():
                    if batch.owner not in self._owners:
                        task = asyncio.create_task(self._run_owner(batch.owner))
                        self._owners[batch.owner] = task
                await self._store.expire()
                self._sweep()
            except ServingError as error:
                log.error("batches could not be read: %s", error)
            shared = self._store.is_shared
            await is_set_within(_SHARED_SWEEP_SECONDS if shared else _SWEEP_SECONDS, self._changed)

    async def _unfinished(self, owner: str | None = None) -> list[Batch]:
        records = await self._store.run(lambda database: database.list_open(KINDS))
        batches = [decode(each.body) for each in records if owner in (None, each.owner)]
        return [batch for batch in batches if batch.id not in self._failed]

    async def _run_owner(self, owner: str) -> None:
        """Run the batches of `owner`, unless another server does."""
        is_done = False
        try:
            is_done = await run_claimed(
                self._store,
                f"batches of {owner}",
                partial(self._run_batches, owner),
                self._stop_cancelled,
            )
        except StateLost as error:
            log.error("batches wait for the database: %s", error)
        except Exception:
            log.error("a batch failed", exc_info=True)
        finally:
            del self._owners[owner]
        if is_done:
            self._changed.set()

    async def _run_batches(self, owner: str) -> None:
        """Run the batches of `owner`, the oldest first, until there are no more."""
        while batches := await self._unfinished(owner):
            await self._run_batch(batches[0])

    async def _stop_cancelled(self) -> None:
        """Stop the batches here that were cancelled by another server."""
        for batch in await self._unfinished():
            if batch.status == "cancelling" and batch.id in self._stops:
                self._stops[batch.id].set()

    async def _run_batch(self, batch: Batch) -> None:
        stop = self._stops[batch.id] = asyncio.Event()
        writer = BatchWriter(self._store, batch, self._formats[batch.kind], self._limits, self._now)
        try:
            if writer.batch.status == "validating":
                await read_lines(self._store, writer, self._limits)
            if writer.batch.status == "in_progress":
                await self._run_lines(writer, stop)
            await writer.finish()
        except StateLost:
            raise  # it goes on when the database is there again
        except ServingError as error:
            code = next((name for kind, name in _CODES if isinstance(error, kind)), "server_error")
            await self._fail(writer, BatchProblem(code, str(error)))
        except Exception:
            log.error("batch %s failed", batch.id, exc_info=True)
            text = "the server failed; its log says why"
            await self._fail(writer, BatchProblem("server_error", text))
        finally:
            del self._stops[batch.id]

    async def _fail(self, writer: BatchWriter, problem: BatchProblem) -> None:
        log.error("batch %s failed: %s", writer.batch.id, problem.message)
        try:
            await writer.fail(problem)
        except ServingError:
            self._failed.add(writer.batch.id)  # it is tried again when the server starts

    async def _run_lines(self, writer: BatchWriter, stop: asyncio.Event) -> None:
        """Run the requests that have no result, until all have one, or the batch is stopped."""
        stopping = asyncio.ensure_future(stop.wait())
        running: set[asyncio.Task[None]] = set()
        last: Piece | None = None
        try:
            while pieces := await writer.next_lines(last, _NUM_READ):
                for piece in pieces:
                    while len(running) >= self._limits.max_batch_running:
                        if not await self._has_ended(running, stopping, writer):
                            return
                    running.add(asyncio.create_task(self._run_line(writer, piece)))
                last = pieces[-1]
            while running:
                if not await self._has_ended(running, stopping, writer):
                    return
        finally:
            for task in (*running, stopping):
                task.cancel()
            await asyncio.wait([*running, stopping])

    async def _has_ended(
        self,
        running: set[asyncio.Task[None]],
        stopping: "asyncio.Future[Literal[True]]",
        writer: BatchWriter,
    ) -> bool:
        """Wait until one of `running` has ended, and return True.

        Returns False if the batch is stopped, or its window is over.  Raises what a task raised.
        """
        waited: set[asyncio.Future[Any]] = {*running, stopping}
        done, _ = await asyncio.wait(
            waited,
            timeout=max(0.0, writer.batch.deadline - self._now()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in done & running:
            running.discard(task)
            task.result()
        return bool(done) and stopping not in done and not writer.is_late

    async def _run_line(self, writer: BatchWriter, piece: Piece) -> None:
        assert self._app is not None
        async with self._slots:
            await run_line(self._app, writer, piece, self._priority)
