"""One request to the other server: sent again while nothing of its answer has come, then read
piece by piece.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.errors import InvalidInputs, Overloaded, UpstreamFailed, UpstreamLate
from mindspore_serving.llm.upstream.budget import WrongPiece
from mindspore_serving.llm.upstream.connection import (
    MOST_BODY,
    MOST_HEAD,
    Bounds,
    Server,
    UpstreamFailure,
    UpstreamReply,
)
from mindspore_serving.llm.upstream.events import AnswerReader
from mindspore_serving.llm.upstream.options import UpstreamOptions
from mindspore_serving.llm.upstream.pieces import decode_models, decode_piece

_FIRST_DELAY, _MOST_DELAY = 0.25, 4.0  # seconds between two tries
_REFUSED = (400, 413, 422)
_BUSY = (408, 429, 503)
_KEY = (401, 403)
_LATE = 504
_LATER = (500, 502, _LATE, *_BUSY)  # another try may succeed
_MOST_TEXT = 500  # characters of an error
_DATA = b"data:"


async def chunks(
    server: Server, path: str, body: bytes, reader: AnswerReader, options: UpstreamOptions
) -> AsyncIterator[list[Chunk]]:
    """What `reader` makes of the answer to `body`.  Raises ServingError."""
    now = asyncio.get_running_loop().time
    end = now() + options.total_timeout
    delay = _FIRST_DELAY
    for is_last in (*(False,) * options.retries, True):
        has_begun = False
        try:
            bounds = Bounds(
                options.first_timeout, options.idle_timeout, end - now(), reader.budget.max_bytes
            )
            async for found in _attempt(server, path, body, reader, bounds):
                has_begun = True
                yield found
            return
        except UpstreamFailure as failure:
            is_late = now() + delay >= end
            if has_begun or is_last or is_late or not failure.may_retry:
                raise failure.error from None
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MOST_DELAY)


async def _attempt(
    server: Server, path: str, body: bytes, reader: AnswerReader, bounds: Bounds
) -> AsyncIterator[list[Chunk]]:
    headers = {"Accept": "text/event-stream"}
    async with server.send(path, body, headers, bounds) as answer:
        if answer.status != 200:
            raise await read_failure(answer)
        async for line in answer.lines():
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if data == b"[DONE]":
                break
            found = _read(answer, data, reader)
            if found:
                answer.clock.pause()
                yield found
                answer.clock.allow(bounds.next)
        if not reader.is_done:
            raise answer.failed("it ended its answer early")


def _read(answer: UpstreamReply, data: bytes, reader: AnswerReader) -> list[Chunk]:
    try:
        piece = decode_piece(data)
        error = bytes(piece.error)
        if error != b"null":
            raise answer.failed(f"it failed: {_message(error)}", may_retry=False)
        return reader.take(piece)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise answer.failed(f"it sent what is no piece of an answer: {error}") from None
    except WrongPiece as error:
        raise answer.failed(str(error), may_retry=False) from None


async def read_failure(answer: UpstreamReply) -> UpstreamFailure:
    """Why an answer has another status than 200."""
    status = answer.status
    if status in _KEY:
        return answer.failed(f"it refuses the server's key ({status})", may_retry=False)
    if 300 <= status < 400:
        where = answer.headers.get("location", "nowhere")[:_MOST_TEXT]
        text = f"it answered {status}, to go to {where}: give that URL"
        return answer.failed(text, may_retry=False)
    text = _message(await answer.whole())
    if status in _REFUSED:
        refusal = InvalidInputs(answer.shown(text) or f"the upstream answered {status}")
        return UpstreamFailure(refusal, may_retry=False)
    kind = UpstreamLate if status == _LATE else UpstreamFailed
    text = f"it answered {status}: {text}"
    failure = answer.failed(text, may_retry=status in _LATER, kind=kind)
    if status in _BUSY:
        busy = Overloaded(str(failure), _retry_after(answer.headers))
        return UpstreamFailure(busy, may_retry=True)
    return failure


def _retry_after(headers: Mapping[str, str]) -> float | None:
    given = headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 6 else None


def _message(body: bytes) -> str:
    """What the body of an error says."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body[:_MOST_TEXT].decode(errors="replace")
    return _text_of(found.get("error", found) if isinstance(found, dict) else found)


def _text_of(error: Any) -> str:
    """Of the forms of errors that servers have."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:_MOST_TEXT]


async def find_models(server: Server, timeout: float) -> list[tuple[str, int]]:
    """The models that the server lists, and how many tokens each takes, 0 if it does not say; none
    if it has no such list.  Raises ServingError if it is not ready.
    """
    bounds = Bounds(timeout, timeout, timeout, MOST_HEAD + 2 * MOST_BODY)
    try:
        async with server.send("/models", None, {"Accept": "application/json"}, bounds) as answer:
            if answer.status in (404, 405, 501):
                return []
            if answer.status != 200:
                raise await read_failure(answer)
            return _read_models(await answer.whole())
    except UpstreamFailure as failure:
        raise failure.error from None


def _read_models(body: bytes) -> list[tuple[str, int]]:
    try:
        found = decode_models(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UpstreamFailed(f"the upstream's list of models cannot be read: {error}") from None
    return [(one.id, one.length) for one in found.data or ()]
