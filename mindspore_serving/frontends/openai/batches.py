"""/v1/batches: requests in a file, whose results become files."""

import time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from mindspore_serving.errors import InvalidField, NoRoute
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.fields import Int, unexpected
from mindspore_serving.frontends.keys import owner_of
from mindspore_serving.frontends.openai.files import PURPOSE, to_page
from mindspore_serving.frontends.state import files, serving
from mindspore_serving.frontends.state.batch import Batch, BatchProblem, Line, LineAnswer, LineError
from mindspore_serving.frontends.state.batch_writer import Key
from mindspore_serving.frontends.state.serving import MAX_SECONDS, to_seconds
from mindspore_serving.frontends.state.store import expiry

KIND = "batch"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
OFFLINE = (*ENDPOINTS, "/v1/score", "/v1/rerank", "/v1/messages")
MAX_LISTED, DEFAULT_LISTED = 100, 20
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # of metadata
_MAX_ID = 512  # characters of a custom_id
_TIMES = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled",
)  # fmt: skip


class ExpiresAfter(msgspec.Struct):
    """Time at which a file is removed."""

    anchor: str
    seconds: Int


class BatchRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class RequestCounts(msgspec.Struct):
    """Numbers of requests of a batch."""

    total: int
    completed: int
    failed: int


class BatchErrors(msgspec.Struct):
    """Reasons why a batch failed."""

    data: list[dict[str, Any]]
    object: str = "list"


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch in OpenAI's form."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, kw_only=True):
    """PageRequest of batches."""

    object: str = "list"
    data: list[BatchObject]
    has_more: bool
    first_id: str | UnsetType = UNSET
    last_id: str | UnsetType = UNSET


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    custom_id: Any = None


class _Streamed(msgspec.Struct):
    stream: Any = None


_read = msgspec.json.Decoder(_Line).decode
_read_name = msgspec.json.Decoder(_Named).decode
_read_body = msgspec.json.Decoder(_Streamed).decode


class OpenAILines:
    """The lines of OpenAI's batches: custom_id, method, url and body."""

    has_joint_file = False

    def paths(self, path: str) -> tuple[str, ...]:
        """Return the paths that lines of a batch for `path` may have."""
        return (path,)

    def read(self, line: bytes, path: str) -> Line:
        """Return the request of a line."""
        try:
            if not line.isascii():
                str(line, "utf-8")
            read = _read(line)
            body = _read_body(read.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LineError(str(error), _name_of(line)) from None
        name, accepted = read.custom_id, self.paths(path)
        if len(name) > _MAX_ID:
            raise LineError(f"custom_id has {len(name)} characters, expected at most {_MAX_ID}")
        if read.method.upper() != "POST" or read.url not in accepted:
            request, expected = f"{read.method[:20]} {read.url[:100]}", " or ".join(accepted)
            raise LineError(f"method and url are {request!r}, expected POST {expected}", name)
        if body.stream not in (None, False):
            raise LineError("stream is set: the results of a batch are not streamed", name)
        return Line(name, read.url, bytes(read.body))

    def write(self, name: str | None, answer: LineAnswer) -> bytes:
        """Return the line of an answer, which is JSON, or else becomes a text."""
        body: object = msgspec.Raw(answer.body)
        if not answer.body.lstrip().startswith(b"{"):
            body = answer.body.decode("utf-8", "replace")
        response = {
            "status_code": answer.status,
            "request_id": answer.request_id,
            "body": body,
        }
        return _to_result(name, response, None)

    def refuse(self, name: str | None, problem: BatchProblem) -> bytes:
        """Return the line of a request without an answer."""
        return _to_result(name, None, _to_error(problem))


class OfflineLines(OpenAILines):
    """The lines of `run-batch`: they may have different paths, and results are in one file."""

    has_joint_file = True

    def paths(self, path: str) -> tuple[str, ...]:
        return OFFLINE


async def create(state: AppState, http: Request, body: BatchRequest) -> BatchObject:
    """Create a batch of the requests in a file."""
    owner = owner_of(http.scope)
    serving.runner_of(state)
    if body.endpoint not in ENDPOINTS:
        raise unexpected("endpoint", body.endpoint, " or ".join(ENDPOINTS))
    seconds = to_seconds(body.completion_window)
    check_metadata(body.metadata)
    await _check_input(state, owner, body.input_file_id)
    now = int(time.time())
    expires = expiry(state.models.limits, now)
    if body.output_expires_after is not None:
        expires = now + seconds + _seconds_of(body.output_expires_after)
    batch = Batch(
        id=files.new_id("batch_"),
        owner=owner,
        kind=KIND,
        path=body.endpoint,
        input=body.input_file_id,
        output=files.new_id("file-"),
        errors=files.new_id("file-"),
        window=body.completion_window,
        created=now,
        deadline=now + seconds,
        metadata=body.metadata,
        results_expire=expires,
    )
    return to_object(await serving.add_batch(state, batch))


async def get_batch(state: AppState, http: Request) -> BatchObject:
    """Return a batch and its progress."""
    return to_object(await serving.find_batch(state, _key(http)))


async def list_all(state: AppState, http: Request) -> BatchList:
    """Return the batches, the newest first."""
    page = to_page(http, DEFAULT_LISTED, MAX_LISTED)
    batches, has_more = await serving.list_batches(state, KIND, owner_of(http.scope), page)
    data = [*map(to_object, batches)]
    ends = {"first_id": data[0].id, "last_id": data[-1].id} if data else {}
    return BatchList(data=data, has_more=has_more, **ends)


async def cancel(state: AppState, http: Request) -> BatchObject:
    """Cancel a batch; the results that it has remain."""
    return to_object(await serving.cancel_batch(state, _key(http)))


def to_object(batch: Batch) -> BatchObject:
    """Return a batch in OpenAI's form."""
    counts, is_over = batch.counts, not batch.is_active
    errors = BatchErrors([*map(_to_error, batch.problems)]) if batch.problems else None
    times: dict[str, Any] = {f"{name}_at": batch.times.get(name) for name in _TIMES}
    return BatchObject(
        id=batch.id,
        endpoint=batch.path,
        errors=errors,
        input_file_id=batch.input,
        completion_window=batch.window,
        status=batch.status,
        output_file_id=(is_over and batch.output) or None,
        error_file_id=(is_over and batch.errors) or None,
        created_at=batch.created,
        expires_at=batch.deadline,
        request_counts=RequestCounts(
            counts.total, counts.completed, counts.failed + counts.expired
        ),
        metadata=batch.metadata,
        **times,
    )


def _key(http: Request) -> Key:
    return KIND, owner_of(http.scope), http.path_params["name"]


def _to_error(problem: BatchProblem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "message": problem.message,
        "line": problem.line,
        "param": None,
    }


def _to_result(name: str | None, response: object, error: object) -> bytes:
    result = {"id": files.new_id("batch_req_"), "custom_id": name}
    return msgspec.json.encode({**result, "response": response, "error": error}) + b"\n"


def _name_of(line: bytes) -> str | None:
    """Return the custom_id of a line that is wrong in another way."""
    try:
        name = _read_name(line).custom_id
    except (msgspec.DecodeError, RecursionError):
        return None
    return name if isinstance(name, str) and len(name) <= _MAX_ID else None


async def _check_input(state: AppState, owner: str, name: str) -> None:
    try:
        record = await files.find_file(state.store, owner, name)
    except NoRoute as error:
        raise InvalidField("input_file_id", text=str(error)) from None
    purpose = files.decode(record.body).purpose
    if purpose != PURPOSE:
        raise InvalidField("input_file_id", f"has the purpose {purpose!r}, expected {PURPOSE!r}")


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Raise InvalidField if metadata is larger than OpenAI's may be."""
    pairs = metadata or {}
    is_right = len(pairs) <= _MAX_PAIRS and all(
        len(key) <= _MAX_KEY and len(value) <= _MAX_VALUE for key, value in pairs.items()
    )
    if not is_right:
        raise InvalidField(
            "metadata",
            f"is too large, expected at most {_MAX_PAIRS} pairs, of keys of {_MAX_KEY} and "
            f"values of {_MAX_VALUE} characters",
        )


def _seconds_of(expires: ExpiresAfter) -> int:
    if expires.anchor != "created_at":
        raise unexpected("output_expires_after.anchor", expires.anchor, "'created_at'")
    if not 3600 <= expires.seconds <= MAX_SECONDS:
        accepted = f"3600 to {MAX_SECONDS}"
        raise unexpected("output_expires_after.seconds", expires.seconds, accepted)
    return int(expires.seconds)
