"""Functions for the routes of every protocol: add, find, list and cancel batches."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import InvalidField, InvalidInputs, NoRoute
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.state import batch as batches
from mindspore_serving.frontends.state.batch import Batch, encode
from mindspore_serving.frontends.state.batch_writer import Key, change, mark
from mindspore_serving.frontends.state.database import Database, PageRequest, Record
from mindspore_serving.frontends.state.files import check_count, open_results
from mindspore_serving.frontends.state.runner import BatchRunner
from mindspore_serving.frontends.state.store import DAY, expiry

MAX_SECONDS = 30 * DAY
_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_WITHOUT = "this server keeps no files and batches: start it with --state DIRECTORY"


def runner_of(state: AppState) -> BatchRunner:
    """Return the runner of batches.  Raises NoRoute if the server has none."""
    if state.batches is None:
        raise NoRoute(_WITHOUT)
    return state.batches


def to_seconds(window: str) -> int:
    """Return the seconds of a window such as "24h" or "7d".  Raises InvalidField."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * (3600 if match[2] == "h" else DAY) if match else 0
    if not 0 < seconds <= MAX_SECONDS:
        problem = f"is {window[:40]!r}, expected hours or days up to 30d, such as 24h"
        raise InvalidField("completion_window", problem)
    return seconds


async def add_batch(state: AppState, batch: Batch) -> Batch:
    """Store a new batch, and let it run.  Raises Overloaded or StorageFull."""
    runner, limits = runner_of(state), state.models.limits
    await state.store.run(lambda database: store_batch(database, batch, limits))
    runner.wake()
    return batch


def store_batch(database: Database, batch: Batch, limits: LanguageLimits) -> None:
    """Add the records of a new batch.  Raises Overloaded."""
    record = Record(
        batch.id, batch.kind, batch.owner, batch.created, encode(batch),
        expires=expiry(limits, batch.created), is_open=True,
    )  # fmt: skip
    check_count(database, batch.owner, limits)
    database.add(record)
    for name in filter(None, (batch.output, batch.errors)):
        open_results(database, batch.owner, name, batch.created)


async def find_batch(state: AppState, key: Key) -> Batch:
    """Return a batch.  Raises NoRoute."""
    runner_of(state)
    record = await state.store.run(lambda database: database.find(*key))
    if record is None:
        raise NoRoute(f"there is no batch {key[2]!r}: it has expired, or never existed")
    return batches.decode(record.body)


async def list_batches(
    state: AppState, kind: str, owner: str, page: PageRequest
) -> tuple[Sequence[Batch], bool]:
    """Return a page of the batches of `owner`, and whether there are more."""
    runner_of(state)
    more = replace(page, limit=page.limit + 1)
    records = await state.store.run(lambda database: database.page(kind, owner, more))
    listed = [batches.decode(record.body) for record in records[: page.limit]]
    return listed, len(records) > page.limit


async def cancel_batch(state: AppState, key: Key) -> Batch:
    """Begin to cancel a batch.  Raises NoRoute, or InvalidInputs if the batch has ended."""
    runner = runner_of(state)

    def cancel(_: Database, batch: Batch) -> None:
        if not batch.is_active:
            raise InvalidInputs(f"batch {key[2]!r} is {batch.status}: it cannot be cancelled")
        if batch.status != "cancelling":
            mark(batch, "cancelling", time.time())

    batch = await state.store.run(lambda database: change(database, key, cancel))
    if batch is None:
        return await find_batch(state, key)  # raises
    runner.wake(batch.id)
    return batch


async def remove_batch(state: AppState, key: Key) -> None:
    """Remove a batch that has ended, and its results.  Raises NoRoute or InvalidInputs."""
    batch = await find_batch(state, key)
    if batch.is_active:
        raise InvalidInputs(f"batch {batch.id!r} is {batch.status}: cancel it first")
    await state.store.run(lambda db: db.remove(batch.id, batch.output, batch.errors))
