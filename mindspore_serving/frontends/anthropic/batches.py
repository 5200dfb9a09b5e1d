"""/v1/messages/batches: requests that run in the background, and their results."""

import time
from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.keys import owner_of
from mindspore_serving.frontends.state import files, serving
from mindspore_serving.frontends.state.batch import (
    Batch,
    BatchProblem,
    Line,
    LineAnswer,
    LineError,
    encode,
)
from mindspore_serving.frontends.state.batch_writer import Key
from mindspore_serving.frontends.state.database import Database, PageRequest
from mindspore_serving.frontends.state.reading_lines import LineReader
from mindspore_serving.frontends.state.store import expiry

KIND = "message_batch"
MESSAGES = "/v1/messages"
BATCHES = f"{MESSAGES}/batches"
MAX_LISTED, DEFAULT_LISTED = 1000, 20
_MAX_ID = 64  # characters of a custom_id
_WINDOW = 86_400  # seconds
_ENDS = {"batch_cancelled": "canceled", "batch_expired": "expired"}


class BatchedMessage(msgspec.Struct):
    """A request of a batch."""

    custom_id: str
    params: msgspec.Raw


class MessageBatchRequest(msgspec.Struct):
    """Body of POST /v1/messages/batches."""

    requests: list[BatchedMessage]


class MessageCounts(msgspec.Struct):
    """Numbers of requests by what became of them."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatchObject(msgspec.Struct, kw_only=True):
    """A batch in Anthropic's form; times are in ISO 8601."""

    id: str
    type: str = "message_batch"
    processing_status: str
    request_counts: MessageCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class MessageBatchList(msgspec.Struct):
    """Page of batches."""

    data: list[MessageBatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeleted(msgspec.Struct):
    """Answer to the deletion of a batch."""

    id: str
    type: str = "message_batch_deleted"


class _Streamed(msgspec.Struct):
    stream: Any = None


_read = msgspec.json.Decoder(BatchedMessage).decode
_read_params = msgspec.json.Decoder(_Streamed).decode


class MessageLines:
    """The lines of Anthropic's batches: custom_id and params."""

    has_joint_file = True

    def read(self, line: bytes, path: str) -> Line:
        """Return the request of a line."""
        try:
            read = _read(line)
            params = _read_params(read.params)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineError(str(error)) from None
        if params.stream not in (None, False):
            raise LineError("stream is set: results are not streamed", read.custom_id)
        return Line(read.custom_id, path, bytes(read.params))

    def write(self, name: str | None, answer: LineAnswer) -> bytes:
        """Return the line of an answer."""
        body = msgspec.Raw(answer.body)
        if answer.status == 200:
            return _to_result(name, {"type": "succeeded", "message": body})
        return _to_result(name, {"type": "errored", "error": body})

    def refuse(self, name: str | None, problem: BatchProblem) -> bytes:
        """Return the line of a request without an answer."""
        if problem.code in _ENDS:
            return _to_result(name, {"type": _ENDS[problem.code]})
        error = {"type": "invalid_request_error", "message": problem.message}
        return _to_result(name, {"type": "errored", "error": {"type": "error", "error": error}})


async def create(state: AppState, http: Request, body: MessageBatchRequest) -> MessageBatchObject:
    """Create a batch of requests."""
    runner, limits = serving.runner_of(state), state.models.limits
    _check(body)
    now = int(time.time())
    batch = Batch(
        id=files.new_id("msgbatch_"),
        owner=owner_of(http.scope),
        kind=KIND,
        path=MESSAGES,
        input="",
        output=files.new_id("file-"),
        errors="",
        window="24h",
        created=now,
        deadline=now + _WINDOW,
        status="in_progress",
        results_expire=expiry(limits, now),
    )
    lines = b"".join(_to_line(each) for each in body.requests)
    reader = LineReader(MessageLines(), MESSAGES, limits)

    def add(database: Database) -> None:
        serving.store_batch(database, batch, limits)
        reader.add(lines, database, batch)
        files.check_room(database, batch.owner, limits, 0)
        database.replace(batch.id, encode(batch), is_open=True)

    await state.store.run(add)
    runner.wake()
    return to_object(http, batch)


async def get_batch(state: AppState, http: Request) -> MessageBatchObject:
    """Return a batch and its progress."""
    return to_object(http, await serving.find_batch(state, _key(http)))


async def list_all(state: AppState, http: Request) -> MessageBatchList:
    """Return the batches, the newest first."""
    limit = http.query_params.get("limit", str(DEFAULT_LISTED))
    if not (limit.isdecimal() and len(limit) <= 4 and 1 <= int(limit) <= MAX_LISTED):
        raise unexpected("limit", limit, f"1 to {MAX_LISTED}")
    before, after = (http.query_params.get(f"{name}_id", "") for name in ("before", "after"))
    page = PageRequest(int(limit), before or after, is_ascending=bool(before))
    batches, has_more = await serving.list_batches(state, KIND, owner_of(http.scope), page)
    data = [to_object(http, batch) for batch in (batches[::-1] if before else batches)]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return MessageBatchList(data, has_more, *ends)


async def cancel(state: AppState, http: Request) -> MessageBatchObject:
    """Cancel a batch; the results that it has remain."""
    return to_object(http, await serving.cancel_batch(state, _key(http)))


async def get_results(state: AppState, http: Request) -> Response:
    """Return the results of a batch that has ended, a line for each request."""
    batch = await serving.find_batch(state, _key(http))
    if batch.is_active:
        raise InvalidInputs(f"batch {batch.id!r} has not ended: its results are not complete")
    content = files.read_file(state.store, batch.output)
    return StreamingResponse(content, media_type="application/x-jsonl")


async def delete(state: AppState, http: Request) -> MessageBatchDeleted:
    """Delete a batch that has ended, and its results."""
    key = _key(http)
    await serving.remove_batch(state, key)
    return MessageBatchDeleted(key[2])


def to_object(http: Request, batch: Batch) -> MessageBatchObject:
    """Return a batch in Anthropic's form."""
    counts, times = batch.counts, batch.times
    status = "canceling" if batch.status == "cancelling" else "in_progress"
    ends = [
        times[name] for name in ("completed", "cancelled", "expired", "failed") if name in times
    ]
    return MessageBatchObject(
        id=batch.id,
        processing_status=status if batch.is_active else "ended",
        request_counts=MessageCounts(
            counts.total - counts.num_ended,
            counts.completed,
            counts.failed,
            counts.cancelled,
            counts.expired,
        ),
        created_at=_to_text(batch.created),
        expires_at=_to_text(batch.deadline),
        ended_at=_to_text(ends[0]) if ends and not batch.is_active else None,
        cancel_initiated_at=_to_text(times["cancelling"]) if "cancelling" in times else None,
        results_url=None
        if batch.is_active
        else f"{http.base_url}v1/messages/batches/{batch.id}/results",
    )


def _key(http: Request) -> Key:
    return KIND, owner_of(http.scope), http.path_params["name"]


def _check(body: MessageBatchRequest) -> None:
    if not body.requests:
        raise InvalidField("requests", "is empty, expected at least one request")
    names: set[str] = set()
    for index, request in enumerate(body.requests):
        field, name = f"requests[{index}].custom_id", request.custom_id
        if not 1 <= len(name) <= _MAX_ID:
            raise InvalidField(field, f"has {len(name)} characters, expected 1 to {_MAX_ID}")
        if name in names:
            raise InvalidField(field, f"is {name!r}, which is repeated")
        names.add(name)


def _to_line(request: BatchedMessage) -> bytes:
    """Return a request on one line: line ends in JSON can only be whitespace."""
    line = msgspec.json.encode(request)
    return line.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def _to_result(name: str | None, result: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"custom_id": name, "result": result}) + b"\n"


def _to_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
