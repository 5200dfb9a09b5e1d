"""Reading of a batch's input file: each line becomes a request, or an error of its own."""

from functools import partial

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.state.batch import (
    Batch,
    BatchProblem,
    Counts,
    LineError,
    LineFormat,
    LineSplitter,
    prefix_key,
)
from mindspore_serving.frontends.state.batch_writer import BatchWriter, mark
from mindspore_serving.frontends.state.database import Database, Piece
from mindspore_serving.frontends.state.files import read_file
from mindspore_serving.frontends.state.store import StateStore

_NOT_REQUEST = "invalid_request"


class LineReader:
    """Reader of the lines of one batch, which numbers them and knows the names before."""

    def __init__(self, form: LineFormat, path: str, limits: LanguageLimits) -> None:
        self.num_lines = 0
        self._form, self._path, self._limits = form, path, limits
        self._names: set[str | None] = set()
        self._splitter = LineSplitter(limits.max_body)

    def add(self, data: bytes | None, database: Database, batch: Batch) -> None:
        """Add the requests in a part of the file to the batch; None is its end.

        Raises InvalidInputs for more lines than a batch may have.
        """
        requests, errors = self._read(data)
        database.add_pieces(batch.id, requests)
        database.add_pieces(batch.output if self._form.has_joint_file else batch.errors, errors)
        batch.counts.failed += len(errors)
        batch.counts.total = self.num_lines

    def _read(self, data: bytes | None) -> tuple[list[Piece], list[Piece]]:
        """Return the requests in a part of the file, and the results of lines that are none."""
        requests: list[Piece] = []
        errors: list[Piece] = []
        for line in self._splitter.end() if data is None else self._splitter.feed(data):
            self.num_lines += 1
            if line is not None and not line.strip():
                self.num_lines -= 1
                continue
            try:
                requests.append(self._to_request(line))
            except LineError as error:
                problem = BatchProblem(_NOT_REQUEST, str(error), self.num_lines)
                errors.append(Piece(self.num_lines, self._form.refuse(error.name, problem)))
        if self.num_lines > self._limits.max_batch_lines:
            limit = self._limits.max_batch_lines
            raise InvalidInputs(
                f"the file has over {limit} lines, which is the limit (--limit max_batch_lines=N)"
            )
        return requests, errors

    def _to_request(self, text: bytes | None) -> Piece:
        if text is None:
            limit = self._limits.max_body
            raise LineError(f"the line has over {limit} bytes, which is the limit of a body")
        line = self._form.read(text, self._path)
        if line.name in self._names:
            raise LineError(f"custom_id {line.name!r} is repeated", line.name)
        self._names.add(line.name)
        try:
            key = prefix_key(line.body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineError(f"body is no JSON object: {error}", line.name) from None
        return Piece(self.num_lines, text, key)


async def read_lines(store: StateStore, writer: BatchWriter, limits: LanguageLimits) -> None:
    """Read the input file of a batch, and let its requests run, unless it is cancelled meanwhile.

    Raises InvalidInputs for a file with no or too many lines, and StorageFull.
    """
    reader = LineReader(writer.form, writer.batch.path, limits)
    await writer.update(_begin)
    async for data in read_file(store, writer.batch.input):
        await writer.update(partial(reader.add, data))
        if writer.batch.status != "validating":
            return
    await writer.update(partial(reader.add, None))
    if not reader.num_lines:
        raise InvalidInputs("the file has no line, expected a request as JSON in each")

    def run(_: Database, batch: Batch) -> None:
        if batch.status == "validating":
            mark(batch, "in_progress", writer.now())

    await writer.update(run)


def _begin(database: Database, batch: Batch) -> None:
    """Remove what an earlier server had read, which ended before it had read all."""
    for name in (batch.id, batch.output, batch.errors):
        database.clear_pieces(name)
    batch.counts = Counts()
