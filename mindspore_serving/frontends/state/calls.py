"""Calls of the routes of this server without a socket, for the lines of batches."""

import asyncio
import secrets

from starlette.types import ASGIApp, Message

from mindspore_serving import log
from mindspore_serving.core.service import tenant_of_task
from mindspore_serving.frontends.keys import TENANT, ApiKey, Tenant
from mindspore_serving.frontends.state.batch import Line, LineAnswer
from mindspore_serving.frontends.state.batch_writer import BatchWriter
from mindspore_serving.frontends.state.database import Piece

_BUSY = frozenset({409, 429, 503, 529})  # the request is sent again until the batch expires
_LATE, _MAX_LATE = 504, 3  # it is sent at most so often
_MIN_DELAY, _MAX_DELAY = 0.5, 30.0  # seconds before it is sent again


async def run_line(app: ASGIApp, writer: BatchWriter, piece: Piece, priority: int) -> None:
    """Run the request of a line, again while the server is busy, and keep its answer."""
    line = writer.form.read(piece.data, writer.batch.path)
    delay, num_late = _MIN_DELAY, 0
    while True:
        answer = await call(app, line, writer.batch.owner, priority)
        num_late += answer.status == _LATE
        is_final = answer.status not in _BUSY and (answer.status != _LATE or num_late == _MAX_LATE)
        if is_final:
            break
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY)
    await writer.add_answer(piece, line.name, answer)


async def call(app: ASGIApp, line: Line, owner: str, priority: int) -> LineAnswer:
    """Return the answer to a request of `owner`.  Cancelling the caller cancels the request."""
    name = secrets.token_hex(16)
    log.request_id.set(name)
    tenant = Tenant(ApiKey("", "a batch", priority=priority, stored_owner=owner))
    tenant_of_task.set(tenant.owner)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": None,
        "client": None,
        "method": "POST",
        "root_path": "",
        "path": line.path,
        "raw_path": line.path.encode(),
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(line.body)),
        ],
        TENANT: tenant,
    }
    unread = [line.body]
    parts: list[bytes] = []
    status = 500

    async def receive() -> Message:
        if not unread:
            await asyncio.get_running_loop().create_future()  # until the call ends
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return LineAnswer(status, b"".join(parts), name)
