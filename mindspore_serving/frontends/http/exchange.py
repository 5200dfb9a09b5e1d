"""One request and its answer: what every exchange is to its connection, and the other way round."""

import asyncio
import http
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

from mindspore_serving.frontends.http.flow import Flow
from mindspore_serving.frontends.http.head import Refusal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}


class Output(Protocol):
    """A connection, as its exchanges see it."""

    transport: asyncio.Transport
    flow: Flow

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        ...

    def finished(self) -> None:
        """The exchange whose turn it is has written all of its answer."""
        ...


class Exchange(ABC):
    """A request of which the head is there.

    `start` is called once, when the answers to earlier requests are written; `feed` with parts of
    the body, then `end`.  After `leave` nobody wants an answer.
    """

    __slots__ = ("is_begun", "is_read", "keep_alive", "output")

    def __init__(self, output: Output, keep_alive: bool) -> None:
        self.output = output
        self.keep_alive = keep_alive  # whether the connection may go on after the answer
        self.is_read = False  # the whole request is there
        self.is_begun = False  # a part of the answer is written

    @abstractmethod
    def start(self) -> None: ...

    def feed(self, data: bytes) -> None:  # noqa: B027 - what comes after a refusal is dropped
        """A part of the body."""

    def end(self) -> None:
        self.is_read = True

    def leave(self) -> None:  # noqa: B027
        """The client is gone, or the rest of its request cannot be read."""

    def resume(self) -> None:  # noqa: B027
        """The client reads again what was written."""


class Refused(Exchange):
    """The answer to what cannot be served as HTTP; nothing is read after it."""

    def __init__(self, output: Output, refusal: Refusal) -> None:
        super().__init__(output, False)
        self._refusal = refusal

    def start(self) -> None:
        self.is_begun = True
        text = self._refusal.text.encode()
        fields = [(b"content-type", b"text/plain; charset=utf-8")]
        head = head_of(self._refusal.status, [*fields, length_of(text)], keep_alive=False)
        self.output.transport.write(head + text)
        self.output.finished()


def length_of(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """The head of an answer."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
