"""The limits of what one client sends, and of the time it takes."""

from dataclasses import dataclass

MAX_HEAD = 64 << 10
"""Bytes of a request line with headers; of anything between or after the parts of a body, such as
trailers; and of one read from the socket."""

MAX_WAITING = 16
"""Requests of one connection that wait for an answer; if more do, nothing is read.  What comes in
one read with the last of them waits too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server.  `max_body` is in bytes, times are in seconds."""

    max_body: int
    max_headers: int = 100
    head_timeout: float = 30.0  # from the first byte of a head to its last
    body_timeout: float = 600.0  # from the end of a head to the last byte of the body
    idle_timeout: float = 100.0  # without a byte from the client, or taken by it
    linger: float = 5.0  # to read on after an error, for the client to read the answer
