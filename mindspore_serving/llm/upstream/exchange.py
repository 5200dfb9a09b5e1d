"""Attempt of a request: sent, then its reply is read chunk by chunk; and lists of models."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.errors import InvalidInputs, Overloaded, UpstreamFailed, UpstreamLate
from mindspore_serving.llm.upstream.budget import InvalidChunk
from mindspore_serving.llm.upstream.connection import (
    MAX_BODY,
    MAX_HEAD,
    ReplyLimits,
    Server,
    UpstreamFailure,
    UpstreamReply,
)
from mindspore_serving.llm.upstream.events import AnswerReader
from mindspore_serving.llm.upstream.response_types import decode_event, decode_models

_REFUSED = (400, 413, 422)
_BUSY = (408, 429, 503)
_KEY = (401, 403)
_LATE = 504
_RETRYABLE = (500, 502, _LATE, *_BUSY)  # another attempt may succeed
_MAX_TEXT = 500  # characters of an error
_DATA = b"data:"


async def stream_chunks(
    server: Server, path: str, body: bytes, reader: AnswerReader, limits: ReplyLimits
) -> AsyncGenerator[list[Chunk], None]:
    """Send `body` and iterate over the chunks that `reader` makes of the reply.

    Raises UpstreamFailure.
    """
    headers = {"Accept": "text/event-stream"}
    async with server.send(path, body, headers, limits) as reply:
        if reply.status != 200:
            raise await read_failure(reply)
        async for line in reply.lines():
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if data == b"[DONE]":
                break
            new = _read(reply, data, reader)
            if new:
                # The timeout is for the server: a slow client must not count against it.
                reply.timer.pause()
                yield new
                reply.timer.allow(limits.next)
        if not reader.is_done:
            raise reply.failed("it ended its reply early")


def _read(reply: UpstreamReply, data: bytes, reader: AnswerReader) -> list[Chunk]:
    try:
        event = decode_event(data)
        error = bytes(event.error)
        if error != b"null":
            raise reply.failed(f"it failed: {_message(error)}", may_retry=False)
        return reader.take(event)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise reply.failed(f"it sent an invalid chunk: {error}") from None
    except InvalidChunk as error:
        raise reply.failed(str(error), may_retry=False) from None


async def read_failure(reply: UpstreamReply) -> UpstreamFailure:
    """Return the failure of a reply with another status than 200."""
    status = reply.status
    if status in _KEY:
        return reply.failed(f"it refuses the key ({status}), see key_variable", may_retry=False)
    if 300 <= status < 400:
        location = reply.headers.get("location", "nowhere")[:_MAX_TEXT]
        text = f"it replied {status}, a redirect to {location}: set url to the target"
        return reply.failed(text, may_retry=False)
    text = _message(await reply.read_body())
    if status in _REFUSED:
        refusal = InvalidInputs(reply.masked(text) or f"the upstream replied {status}")
        return UpstreamFailure(refusal, may_retry=False)
    kind = UpstreamLate if status == _LATE else UpstreamFailed
    text = f"it replied {status}: {text}"
    failure = reply.failed(text, may_retry=status in _RETRYABLE, kind=kind)
    if status in _BUSY:
        busy = Overloaded(str(failure), _retry_after(reply.headers))
        return UpstreamFailure(busy, may_retry=True)
    return failure


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else None


def _message(body: bytes) -> str:
    """Return the message in the body of an error."""
    try:
        content = msgspec.json.decode(body)
        return _text_of(content.get("error", content) if isinstance(content, dict) else content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body[:_MAX_TEXT].decode(errors="replace")


def _text_of(error: Any) -> str:
    """Return the message of an error in any of the forms that servers use."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:_MAX_TEXT]


async def list_models(server: Server, timeout: float) -> list[tuple[str, int]]:
    """List the models of the server with their context lengths, 0 for an unknown one.

    Returns an empty list for a server without such a list. Raises ServingError if it is not ready.
    """
    limits = ReplyLimits(timeout, timeout, timeout, MAX_HEAD + 2 * MAX_BODY)
    try:
        async with server.send("/models", None, {"Accept": "application/json"}, limits) as reply:
            if reply.status in (404, 405, 501):
                return []
            if reply.status != 200:
                raise await read_failure(reply)
            return _read_models(await reply.read_body())
    except UpstreamFailure as failure:
        raise failure.error from None


def _read_models(body: bytes) -> list[tuple[str, int]]:
    try:
        models = decode_models(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UpstreamFailed(f"the upstream's list of models is invalid: {error}") from None
    return [(model.id, model.length) for model in models.data or ()]
