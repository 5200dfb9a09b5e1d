"""Framing of llm-serving's streams, in four forms.  Knows no model."""

from typing import Literal, Protocol

from msgspec.structs import asdict

from mindspore_serving.frontends.llm_serving.answers import (
    DetailsFirst,
    EventMessage,
    GeneratedText,
    IndexedChunk,
    IndexedToken,
    LlmServingAnswer,
    LlmServingChunk,
    to_spaced_json,
)

Form = Literal["r21", "bare"]

SSE = {
    "content-type": "text/event-stream; charset=utf-8",
    "connection": "keep-alive",
}
RETRY = 30_000  # milliseconds
LINES = {"content-type": "text/plain; charset=utf-8"}


def to_event(data: str | int) -> bytes:
    """Return a server-sent event whose JSON has `data`."""
    return b"data: %b\r\n\r\n" % to_spaced_json(EventMessage(RETRY, data))


class StreamFrames(Protocol):
    """Framing of one form of streams."""

    headers: dict[str, str]
    ping: bytes  # sent while there are no tokens, so that proxies keep the connection

    def chunk(self, index: int, chunk: LlmServingChunk) -> bytes:
        """Return the frame of the token with `index` in the answer, from 1."""
        ...

    def last(self, answer: LlmServingAnswer) -> bytes:
        """Return the last frame of a stream, which has the full answer."""
        ...


class EventFrames:
    """Server-sent events with the text alone: the first release's "sse"."""

    headers = SSE
    ping = b": You can't see this ping\r\n\r\n"

    def chunk(self, index: int, chunk: LlmServingChunk) -> bytes:
        return to_event(chunk.generated_text)

    def last(self, answer: LlmServingAnswer) -> bytes:
        return to_event(answer.generated_text)


class IndexedFrames:
    """Lines with text and index: the first release's other form."""

    headers = LINES
    ping = b""

    def chunk(self, index: int, chunk: LlmServingChunk) -> bytes:
        token = IndexedToken(chunk.generated_text, index)
        return b"data:%b\n" % to_spaced_json(IndexedChunk(token))

    def last(self, answer: LlmServingAnswer) -> bytes:
        return b"data:%b\n" % to_spaced_json(GeneratedText(answer.generated_text))


class BareFrames:
    """Lines of JSON that call themselves events: the later "sse"."""

    headers = SSE
    ping = b""  # clients parse every line

    def chunk(self, index: int, chunk: LlmServingChunk) -> bytes:
        return to_spaced_json(EventMessage(RETRY, [chunk])) + b"\n"

    def last(self, answer: LlmServingAnswer) -> bytes:
        return to_spaced_json(EventMessage(RETRY, [DetailsFirst(**asdict(answer))])) + b"\n"


class DataFrames:
    """Lines of "data:" and JSON: the later other form."""

    headers = LINES
    ping = b""

    def chunk(self, index: int, chunk: LlmServingChunk) -> bytes:
        return b"data:%b\n" % to_spaced_json(chunk)

    def last(self, answer: LlmServingAnswer) -> bytes:
        return b"data:%b\n" % to_spaced_json(answer)


_FRAMES: dict[tuple[Form, bool], StreamFrames] = {
    ("r21", True): EventFrames(),
    ("r21", False): IndexedFrames(),
    ("bare", True): BareFrames(),
    ("bare", False): DataFrames(),
}


def frames_of(form: Form, protocol: str | None) -> StreamFrames:
    """Return the framing of a server's form and a request's `return_protocol`, "sse" by default."""
    return _FRAMES[form, protocol in (None, "sse")]
