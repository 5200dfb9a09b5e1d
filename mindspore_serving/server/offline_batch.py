"""A batch without a server: the requests of a file run in this process, and no port opens.

It is the runner of the server's batches, with its state in a directory beside the results.
"""

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mindspore_serving.aio import on_thread
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import InvalidInputs, ServingError, reason
from mindspore_serving.frontends.openai.batches import KIND, OfflineLines
from mindspore_serving.frontends.state import batch as batches
from mindspore_serving.frontends.state import files
from mindspore_serving.frontends.state.batch import Batch
from mindspore_serving.frontends.state.database import Database, Piece, Record
from mindspore_serving.frontends.state.serving import store_batch
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.serving import Serving

Progress = Callable[[Batch], None]

SUFFIX = ".state"  # of the directory beside the results
_PIECE = 1 << 20  # bytes
_POLL = 0.1  # seconds
_NO_LIMIT = 1 << 60
_FOREVER = 100 * 365 * 86_400  # seconds


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """Files of requests and results, and the number of requests that run at once."""

    source: str
    target: str
    max_running: int
    max_body: int = LanguageLimits().max_body

    @property
    def directory(self) -> str:
        """Directory of the state, which exists until the batch has ended."""
        return self.target + SUFFIX

    @property
    def options(self) -> FrontEndOptions:
        """Options of the routes; nothing listens on the address."""
        limits = LanguageLimits(
            max_body=self.max_body,
            max_files_bytes=_NO_LIMIT,
            max_batch_lines=_NO_LIMIT,
            max_batch_running=self.max_running,
        )
        return FrontEndOptions(
            address="none", language_limits=limits, state_directory=self.directory, max_n=128
        )


async def run_batch(serving: Serving, job: OfflineJob, on_progress: Progress) -> Batch:
    """Run the requests of a file and write the results; return the batch.

    If the state of the same file is there, those with a result do not run again.  Raises
    InvalidInputs if a file cannot be read or written, ServingError if the models end.
    """
    _, router = await serving.open_routes(job.options, {KIND: OfflineLines()}, priority=0)
    assert serving.batches is not None
    assert serving.store is not None
    runner, store = serving.batches, serving.store
    digest = await on_thread("files", _digest_of, job.source)
    batch = await _stored(store, digest) or await _add(store, job, digest)
    runner.start(router)
    while batch.is_active:
        await asyncio.sleep(_POLL)
        if not runner.is_running:
            raise ServingError("the models have ended: see serving_logs/")
        batch = await _stored(store, digest) or batch
        on_progress(batch)
    if batch.problems:
        raise ServingError(f"the batch failed: {batch.problems[0].message}")
    await _write(store, batch, job.target)
    return batch


def remove_state(job: OfflineJob) -> None:
    """Remove the state of a batch that has ended."""
    shutil.rmtree(job.directory, ignore_errors=True)


async def _stored(store: StateStore, digest: str) -> Batch | None:
    record = await store.run(lambda database: database.find(KIND, "", f"batch_{digest}"))
    return None if record is None else batches.decode(record.body)


async def _add(store: StateStore, job: OfflineJob, digest: str) -> Batch:
    """Copy the requests to the store, and add their batch."""
    now, name = int(time.time()), f"file-{digest}"
    body = files.encode(files.StoredFile(filename=job.source, purpose=KIND))
    record = Record(name, files.KIND, "", now, body)

    def begin(database: Database) -> None:
        database.remove(name)  # if an earlier copy was interrupted
        database.add(record)

    await store.run(begin)
    for number, data in enumerate(_read(job.source)):
        piece = Piece(number, data)
        await store.run(lambda database: database.add_pieces(name, [piece]))  # noqa: B023
    batch = Batch(
        id=f"batch_{digest}",
        owner="",
        kind=KIND,
        path="",
        input=name,
        output=files.new_id("file-"),
        errors="",
        window="",
        created=now,
        deadline=now + _FOREVER,
    )
    limits = job.options.language_limits
    await store.run(lambda database: store_batch(database, batch, limits))
    return batch


async def _write(store: StateStore, batch: Batch, target: str) -> None:
    """Write the results, which appear under their name when they are complete."""
    partial = f"{target}.part"
    try:
        with open(partial, "wb") as file:
            async for data in files.read_file(store, batch.output):
                file.write(data)
        os.replace(partial, target)
    except OSError as error:
        raise InvalidInputs(f"{target} cannot be written: {reason(error)}") from None


def _read(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(_PIECE):
            yield data


def _digest_of(path: str) -> str:
    digest = hashlib.sha256()
    try:
        for data in _read(path):
            digest.update(data)
    except OSError as error:
        raise InvalidInputs(f"{path} cannot be read: {reason(error)}") from None
    return digest.hexdigest()[:32]
