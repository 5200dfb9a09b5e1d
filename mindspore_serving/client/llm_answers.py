"""Answers of llm-serving's HTTP protocol, complete or in any form of stream.  No connection."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.errors import InvalidInputs, ServingError

# Errors that are sent as the text of an answer with status 200.
_BY_TEXT: dict[str, type[ServingError]] = {
    "Error202: prompt out of range": InvalidInputs,
    "Error203: prompt token empty": InvalidInputs,
    "error304: generation task stop abnormally!, please retry!": ServingError,
}


@dataclass(frozen=True, slots=True)
class Token:
    """Token of an answer; `id` and `logprob` are None if the stream has text alone."""

    text: str
    id: int | None = None
    logprob: float | None = None
    special: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """Complete answer; `finish_reason` is "eos", "length" or "stop_sequence"."""

    generated_text: str
    finish_reason: str = ""
    generated_tokens: int = 0
    tokens: list[Token] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """Chunk with a `token`; or the last one with the complete `generated_text`, if requested."""

    token: Token | None = None
    generated_text: str | None = None


def _parse(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ServingError(f"the server's answer is not a JSON object: {text[:100]!r}")
    return parsed


def to_response(body: bytes) -> Response:
    """Parse a complete answer.  Raises ServingError if it is invalid, or reports an error."""
    answer = _parse(body)
    text, reason = str(answer.get("generated_text", "")), str(answer.get("finish_reason", ""))
    if reason not in ("eos", "length", "stop_sequence"):
        _check(text)
    tokens = [_to_token(token) for token in answer.get("tokens", ())]
    return Response(text, reason, int(answer.get("generated_tokens", 0)), tokens)


def to_responses(read: Callable[[int], bytes], *, has_last: bool) -> Iterator[StreamResponse]:
    """Iterate over the chunks of a stream; `read` returns its bytes, b"" at the end.

    With `has_last` the last object is the complete answer. Raises ServingError if it breaks.
    """
    previous: dict[str, Any] | None = None
    for parsed in _objects(_lines(read)):
        if previous is not None:
            yield _to_piece(previous)
        previous = parsed
    if previous is None:
        return
    yield StreamResponse(generated_text=_text_of(previous)) if has_last else _to_piece(previous)


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    incomplete = b""
    while chunk := read(1 << 16):
        *lines, incomplete = (incomplete + chunk).split(b"\n")
        yield from lines
    yield incomplete


def _objects(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Iterate over the objects in lines of any form; comments and blank lines have none."""
    for line in lines:
        text = line.strip().removeprefix(b"data:")
        if text and not text.startswith(b":"):
            yield _parse(text)


def _to_piece(parsed: dict[str, Any]) -> StreamResponse:
    inner = _inner(parsed)
    token = inner.get("token", inner.get("tokens"))
    chunk_token = _to_token(token) if isinstance(token, dict) else Token(_text_of(parsed))
    _check(chunk_token.text)
    return StreamResponse(token=chunk_token)


def _inner(parsed: dict[str, Any]) -> dict[str, Any]:
    """Return the object in an envelope, which may be a list with one object."""
    data = parsed.get("data")
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], dict):
        return dict(data[0])
    return parsed


def _text_of(parsed: dict[str, Any]) -> str:
    inner = _inner(parsed)
    return str(inner.get("generated_text", inner.get("data", "")))


def _to_token(parsed: dict[str, Any]) -> Token:
    return Token(
        str(parsed.get("text", "")),
        parsed.get("id"),
        parsed.get("logprob"),
        bool(parsed.get("special", False)),
    )


def _check(text: str) -> None:
    """Raise the error that the text stands for."""
    for known, error_type in _BY_TEXT.items():
        if text.endswith(known):
            raise error_type(known)
