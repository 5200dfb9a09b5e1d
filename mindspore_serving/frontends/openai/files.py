"""/v1/files: uploads for batches, and the results of batches."""

import time
from collections.abc import AsyncIterator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import OF_MESSAGES, read_body
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.forms import FORM_OVERHEAD, parse_form
from mindspore_serving.frontends.keys import owner_of
from mindspore_serving.frontends.state import files
from mindspore_serving.frontends.state.database import PageRequest, Record
from mindspore_serving.frontends.state.files import KIND, StoredFile, add_file, find_file, read_file
from mindspore_serving.frontends.state.serving import MAX_SECONDS, runner_of
from mindspore_serving.frontends.state.store import expiry

PURPOSE = "batch"
MAX_LISTED = 10_000
_MAX_NAME = 255  # characters of a file's name
_OPTION = "--limit max_file=BYTES"
_MIN_SECONDS = 3600


class FileObject(msgspec.Struct, kw_only=True):
    """A file in OpenAI's form."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: None = None


class FileList(msgspec.Struct, kw_only=True):
    """PageRequest of files."""

    object: str = "list"
    data: list[FileObject]
    has_more: bool
    first_id: str | UnsetType = UNSET
    last_id: str | UnsetType = UNSET


class FileDeleted(msgspec.Struct):
    """LineAnswer to the deletion of a file."""

    id: str
    object: str = "file"
    deleted: bool = True


async def upload(state: AppState, http: Request) -> FileObject:
    """Store a file for a batch, from a form with `file` and `purpose`."""
    runner_of(state)
    limits = state.models.limits
    limit = min(limits.max_file, state.max_body)
    option = _OPTION if limit == limits.max_file else OF_MESSAGES
    body = await read_body(http, limit + FORM_OVERHEAD, option)
    async with await parse_form(http, body) as form:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise InvalidField("file", "is missing, expected a file of lines of JSON")
        if purpose != PURPOSE:
            raise unexpected("purpose", purpose, repr(PURPOSE))
        now = time.time()
        expires = _expiry_of(form, now) or expiry(limits, now)
        content = await file.read()
        name = (file.filename or "file")[:_MAX_NAME]
    stored = StoredFile(filename=name, purpose=PURPOSE, size=len(content))
    record = Record(
        files.new_id("file-"), KIND, owner_of(http.scope), int(now), files.encode(stored),
        expires=expires, is_open=True,
    )  # fmt: skip
    await add_file(state.store, record, content, limits)
    return to_object(record)


async def list_files(state: AppState, http: Request) -> FileList:
    """Return the files, the newest first unless `order` is asc."""
    runner_of(state)
    page, purpose = to_page(http, MAX_LISTED, MAX_LISTED), http.query_params.get("purpose")
    everything = PageRequest(state.models.limits.max_files * 3, page.after, page.is_ascending)
    owner = owner_of(http.scope)
    records = await state.store.run(lambda database: database.page(KIND, owner, everything))
    listed = [to_object(record) for record in records if not record.is_open]
    listed = [file for file in listed if purpose in (None, file.purpose)]
    data = listed[: page.limit]
    ends = {"first_id": data[0].id, "last_id": data[-1].id} if data else {}
    return FileList(data=data, has_more=len(listed) > len(data), **ends)


async def get_file(state: AppState, http: Request) -> FileObject:
    """Return the description of a file."""
    return to_object(await _find(state, http))


async def get_content(state: AppState, http: Request) -> Response:
    """Return the bytes of a file."""
    record = await _find(state, http)
    size = files.decode(record.body).size
    content: AsyncIterator[bytes] = read_file(state.store, record.id)
    headers = {"content-length": str(size)}
    return StreamingResponse(content, headers=headers, media_type="application/octet-stream")


async def delete_file(state: AppState, http: Request) -> FileDeleted:
    """Delete a file."""
    record = await _find(state, http)
    await state.store.run(lambda database: database.remove(record.id))
    return FileDeleted(record.id)


def to_object(record: Record) -> FileObject:
    """Return a file in OpenAI's form."""
    file = files.decode(record.body)
    return FileObject(
        id=record.id,
        bytes=file.size,
        created_at=record.created,
        expires_at=record.expires,
        filename=file.filename,
        purpose=file.purpose,
    )


def to_page(http: Request, default: int, max_limit: int) -> PageRequest:
    """Return the page that the query selects: `after`, `limit` and `order`."""
    limit = http.query_params.get("limit", str(default))
    if not (limit.isdecimal() and len(limit) <= 5 and 1 <= int(limit) <= max_limit):
        raise unexpected("limit", limit, f"1 to {max_limit}")
    order = http.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise unexpected("order", order, "asc or desc")
    after = http.query_params.get("after", "")
    return PageRequest(int(limit), after, is_ascending=order == "asc")


async def _find(state: AppState, http: Request) -> Record:
    runner_of(state)
    return await find_file(state.store, owner_of(http.scope), http.path_params["name"])


def _expiry_of(form: FormData, now: float) -> int | None:
    """Return when the file is to be removed, if the form says so.  Raises InvalidField."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise unexpected("expires_after.anchor", anchor, "'created_at'")
    text = str(seconds)
    if not (text.isdecimal() and len(text) < 8 and _MIN_SECONDS <= int(text) <= MAX_SECONDS):
        raise unexpected("expires_after.seconds", seconds, f"{_MIN_SECONDS} to {MAX_SECONDS}")
    return int(now) + int(text)
