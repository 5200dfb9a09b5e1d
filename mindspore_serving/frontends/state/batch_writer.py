"""Writing of a batch's progress and results: each step is one transaction.

The database has the truth: a step reads the batch, changes it and writes it, so that a client may
cancel the batch at any time.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.frontends.state.batch import (
    Batch,
    BatchProblem,
    LineAnswer,
    LineFormat,
    decode,
    encode,
)
from mindspore_serving.frontends.state.database import Database, Piece
from mindspore_serving.frontends.state.files import check_room, close_results
from mindspore_serving.frontends.state.store import StateStore

Key = tuple[str, str, str]  # kind, owner and id
Change = Callable[[Database, Batch], object]

_EXPIRED = BatchProblem("batch_expired", "This request was not executed: the window is over.")
_CANCELLED = BatchProblem(
    "batch_cancelled", "This request was not executed: the batch ended before."
)
_OK = 200
_NUM_ENDED = 256  # lines that end in one transaction


def change(database: Database, key: Key, apply: Change) -> Batch | None:
    """Apply a change to a batch and write it; return the batch, None if it does not exist."""
    record = database.find(*key)
    if record is None:
        return None
    batch = decode(record.body)
    apply(database, batch)
    database.replace(record.id, encode(batch), is_open=batch.is_active)
    return batch


def mark(batch: Batch, status: str, now: float) -> None:
    """Set the status of a batch, and the time of it."""
    batch.status = status
    batch.times[status] = int(now)


class BatchWriter:
    """Writer of one batch that runs; `batch` is as it was after the last step."""

    def __init__(
        self,
        store: StateStore,
        batch: Batch,
        form: LineFormat,
        limits: LanguageLimits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.batch, self.form, self.now = batch, form, now
        self._store, self._limits = store, limits

    @property
    def is_late(self) -> bool:
        """True if the batch's window is over."""
        return self.now() >= self.batch.deadline

    async def update(self, apply: Change) -> None:
        """Apply a change, see `change`."""
        key = self.batch.kind, self.batch.owner, self.batch.id
        batch = await self._store.run(partial(change, key=key, apply=apply))
        if batch is not None:
            self.batch = batch

    async def next_lines(self, after: Piece | None, limit: int) -> Sequence[Piece]:
        """Return lines without a result, behind `after`, in the order of their prompts."""
        name = self.batch.id
        return await self._store.run(lambda database: database.pieces_by_key(name, after, limit))

    async def add_answer(self, piece: Piece, name: str | None, answer: LineAnswer) -> None:
        """Keep the answer to a line, unless it has a result."""

        def keep(database: Database, batch: Batch) -> None:
            if not database.remove_piece(batch.id, piece.number):
                return
            result = Piece(piece.number, self.form.write(name, answer))
            check_room(database, batch.owner, self._limits, len(result.data))
            is_right = answer.status == _OK
            database.add_pieces(self._file(is_right=is_right), [result])
            batch.counts.completed += is_right
            batch.counts.failed += not is_right

        await self.update(keep)

    async def finish(self) -> None:
        """End the batch: as completed, or cancelled or expired if requests remain."""
        while lines := await self.next_lines(None, _NUM_ENDED):
            await self.update(partial(self._end, lines))
        await self.update(self._close)

    async def fail(self, problem: BatchProblem) -> None:
        """End the batch with an error; results that it has remain."""

        def end(database: Database, batch: Batch) -> None:
            database.clear_pieces(batch.id)  # frees the room that the results' records need
            batch.problems.append(problem)
            mark(batch, "failed", self.now())
            self._close_files(database, batch)

        await self.update(end)

    def _file(self, *, is_right: bool) -> str:
        return self.batch.output if is_right or self.form.has_joint_file else self.batch.errors

    def _end(self, lines: Sequence[Piece], database: Database, batch: Batch) -> None:
        """End lines without an answer."""
        is_cancelled = batch.status == "cancelling"
        problem = _CANCELLED if is_cancelled else _EXPIRED
        for piece in lines:
            database.remove_piece(batch.id, piece.number)
            line = self.form.read(piece.data, batch.path)
            result = self.form.refuse(line.name, problem)
            if result:
                database.add_pieces(self._file(is_right=False), [Piece(piece.number, result)])
        batch.counts.cancelled += len(lines) * is_cancelled
        batch.counts.expired += len(lines) * (not is_cancelled)

    def _close(self, database: Database, batch: Batch) -> None:
        status = "cancelled" if batch.status == "cancelling" else "completed"
        if batch.counts.expired:
            status = "expired"
        batch.times.setdefault("finalizing", int(self.now()))
        mark(batch, status, self.now())
        self._close_files(database, batch)

    def _close_files(self, database: Database, batch: Batch) -> None:
        expires = batch.results_expire
        if not close_results(database, batch.owner, batch.output, expires):
            batch.output = ""
        if not close_results(database, batch.owner, batch.errors, expires):
            batch.errors = ""
