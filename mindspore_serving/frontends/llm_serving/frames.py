"""Answers as bytes: whole ones, and the four forms of streams.  Knows no model.

The JSON has a space behind colons and commas, as the original's had: there are clients that cut it
up as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from mindspore_serving.core.llm_messages import GeneratedToken

Form = Literal["r21", "bare"]

_encode = msgspec.json.Encoder().encode
_ENVELOPE = b'{"event": "message", "retry": 30000, "data": %b}'
SSE = {
    "content-type": "text/event-stream; charset=utf-8",
    "connection": "keep-alive",
}
LINES = {"content-type": "text/plain; charset=utf-8"}


class ShownText(msgspec.Struct, frozen=True, gc=False):
    """A token as it is shown, and the likeliest in its place if they were asked for."""

    id: int
    text: str
    logprob: float
    top: tuple[GeneratedToken, ...] = ()

    def to_json(self) -> bytes:
        return _token(self.id, self.text, self.logprob)

    def to_top(self) -> bytes:
        """Without likelier ones, the token itself."""
        if not self.top:
            return self.to_json()
        return _joined([_token(one.id, one.text, one.logprob or 0.0) for one in self.top])


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer from its beginning to its end."""

    text: str
    finish_reason: str
    num_generated: int
    tokens: Sequence[ShownText]
    prompt: Sequence[GeneratedToken] | None = None  # if it was asked for
    seed: int = 0
    num_prompt_tokens: int | None = None  # if details were asked for

    def to_json(self, *, details_first: bool = False) -> bytes:
        members = [
            b'"generated_text": ' + _encode(self.text),
            b'"finish_reason": ' + _encode(self.finish_reason),
            b'"generated_tokens": %d' % self.num_generated,
            b'"prefill": [%b]' % self._prefill(),
            b'"seed": %d' % self.seed,
            b'"tokens": [%b]' % _joined([token.to_json() for token in self.tokens]),
            b'"top_tokens": [%b]' % self._top_tokens(),
        ]
        members.insert(0 if details_first else len(members), b'"details": ' + self._details())
        return b"{%b}" % _joined(members)

    def _prefill(self) -> bytes:
        """The prompt's tokens; else, as ever, the first of the answer."""
        if self.prompt is not None:
            return _joined([_token(one.id, one.text, one.logprob or 0.0) for one in self.prompt])
        return self.tokens[0].to_json() if self.tokens else b""

    def _top_tokens(self) -> bytes:
        shown = [token for token in self.tokens if token.top] or self.tokens[:1]
        return _joined([b"[%b]" % token.to_top() for token in shown])

    def _details(self) -> bytes:
        if self.num_prompt_tokens is None:
            return b"null"
        return b'{"finish_reason": %b, "generated_tokens": %d, "seed": %d, "input_length": %d}' % (
            _encode(self.finish_reason),
            self.num_generated,
            self.seed,
            self.num_prompt_tokens,
        )


def _token(token_id: int, text: str, logprob: float) -> bytes:
    return b'{"id": %d, "logprob": %b, "special": %b, "text": %b}' % (
        token_id,
        _encode(logprob),
        b"false" if text else b"true",
        _encode(text),
    )


def _joined(parts: Sequence[bytes]) -> bytes:
    return b", ".join(parts)


def _chunk(shown: ShownText) -> bytes:
    return b'{"details": null, "generated_text": %b, "tokens": %b, "top_tokens": [%b]}' % (
        _encode(shown.text),
        shown.to_json(),
        shown.to_top(),
    )


def message(data: bytes) -> bytes:
    """One server-sent event; event and retry are members of its JSON."""
    return b"data: " + _ENVELOPE % data + b"\r\n\r\n"


class StreamFrames(Protocol):
    """A form of streams."""

    headers: dict[str, str]
    ping: bytes  # what fills a silence

    def chunk(self, index: int, shown: ShownText) -> bytes:
        """The `index`-th token, from 1."""
        ...

    def last(self, whole: Whole) -> bytes: ...


class EventFrames:
    """Server-sent events with the text alone: the first release's "sse"."""

    headers = SSE
    ping = b": You can't see this ping\r\n\r\n"

    def chunk(self, index: int, shown: ShownText) -> bytes:
        return message(_encode(shown.text))

    def last(self, whole: Whole) -> bytes:
        return message(_encode(whole.text))


class IndexedFrames:
    """Lines with text and index: the first release's other form."""

    headers = LINES
    ping = b""

    def chunk(self, index: int, shown: ShownText) -> bytes:
        return b'data:{"token": {"text": %b, "index": %d}}\n' % (_encode(shown.text), index)

    def last(self, whole: Whole) -> bytes:
        return b'data:{"generated_text": %b}\n' % _encode(whole.text)


class BareFrames:
    """Lines of JSON that call themselves events: the later "sse"."""

    headers = SSE
    ping = b""  # clients parse every line

    def chunk(self, index: int, shown: ShownText) -> bytes:
        return _ENVELOPE % (b"[%b]" % _chunk(shown)) + b"\n"

    def last(self, whole: Whole) -> bytes:
        return _ENVELOPE % (b"[%b]" % whole.to_json(details_first=True)) + b"\n"


class DataFrames:
    """Lines of "data:" and JSON: the later other form."""

    headers = LINES
    ping = b""

    def chunk(self, index: int, shown: ShownText) -> bytes:
        return b"data:%b\n" % _chunk(shown)

    def last(self, whole: Whole) -> bytes:
        return b"data:%b\n" % whole.to_json()


_FRAMES: dict[tuple[Form, bool], StreamFrames] = {
    ("r21", True): EventFrames(),
    ("r21", False): IndexedFrames(),
    ("bare", True): BareFrames(),
    ("bare", False): DataFrames(),
}


def frames_of(form: Form, protocol: str | None) -> StreamFrames:
    """The frames of a server's form and a request's `return_protocol`: "sse", or anything else."""
    return _FRAMES[form, protocol in (None, "sse")]
