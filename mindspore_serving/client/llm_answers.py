"""Answers of llm-serving's HTTP protocol, whole or in any form of stream.  Knows no connection."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.errors import InvalidInputs, ServingError

# Texts that come in place of an answer, with status 200.
_BY_TEXT: dict[str, type[ServingError]] = {
    "Error202: prompt out of range": InvalidInputs,
    "Error203: prompt token empty": InvalidInputs,
    "error304: generation task stop abnormally!, please retry!": ServingError,
}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of an answer.  `id` and `logprob` are None where the stream has the text alone."""

    text: str
    id: int | None = None
    logprob: float | None = None
    special: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer.  `finish_reason` is "eos", "length" or "stop_sequence"."""

    generated_text: str
    finish_reason: str = ""
    generated_tokens: int = 0
    tokens: list[Token] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """A `token`; or at the end, if it was requested, the whole `generated_text` alone."""

    token: Token | None = None
    generated_text: str | None = None


def _parse(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServingError(f"the server answered what is no JSON object: {text[:100]!r}")
    return found


def to_response(body: bytes) -> Response:
    """A whole answer.  Raises ServingError if it is none, or reports an error."""
    found = _parse(body)
    text, reason = str(found.get("generated_text", "")), str(found.get("finish_reason", ""))
    if reason not in ("eos", "length", "stop_sequence"):
        _check(text)
    tokens = [_to_token(one) for one in found.get("tokens", ())]
    return Response(text, reason, int(found.get("generated_tokens", 0)), tokens)


def to_responses(read: Callable[[int], bytes], *, has_last: bool) -> Iterator[StreamResponse]:
    """The stream that `read` gives the bytes of, until there are none.

    With `has_last` the last object is the whole answer.  Raises ServingError if it breaks.
    """
    held: dict[str, Any] | None = None
    for found in _objects(_lines(read)):
        if held is not None:
            yield _to_piece(held)
        held = found
    if held is None:
        return
    yield StreamResponse(generated_text=_text_of(held)) if has_last else _to_piece(held)


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


def _objects(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """What the lines hold, whichever their form; comments and blank lines hold nothing."""
    for line in lines:
        text = line.strip().removeprefix(b"data:")
        if text and not text.startswith(b":"):
            yield _parse(text)


def _to_piece(found: dict[str, Any]) -> StreamResponse:
    inner = _inner(found)
    token = inner.get("token", inner.get("tokens"))
    shown = _to_token(token) if isinstance(token, dict) else Token(_text_of(found))
    _check(shown.text)
    return StreamResponse(token=shown)


def _inner(found: dict[str, Any]) -> dict[str, Any]:
    """The object that may be in an envelope, and there alone in a list."""
    data = found.get("data")
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], dict):
        return dict(data[0])
    return found


def _text_of(found: dict[str, Any]) -> str:
    inner = _inner(found)
    return str(inner.get("generated_text", inner.get("data", "")))


def _to_token(found: dict[str, Any]) -> Token:
    return Token(
        str(found.get("text", "")),
        found.get("id"),
        found.get("logprob"),
        bool(found.get("special", False)),
    )


def _check(text: str) -> None:
    """Raise the error that the text stands for."""
    for known, kind in _BY_TEXT.items():
        if text.endswith(known):
            raise kind(known)
