"""What one client may send, and how long it may take."""

from dataclasses import dataclass

MAX_HEAD = 64 << 10
"""Bytes of a request line and headers; of trailers, and of anything else between two parts of a
body; and of one read from the socket."""

MAX_WAITING = 16
"""Requests that may wait for the answer to an earlier one before nothing more is read; those that
come in one read with the last of them wait too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server.  `max_body` is in bytes, times are in seconds."""

    max_body: int
    max_headers: int = 100
    head_timeout: float = 30.0  # from the first byte of a head to its last
    body_timeout: float = 600.0  # from the end of a head to the last byte of the body
    idle_timeout: float = 100.0  # without a byte from the client, or taken by it
    linger: float = 5.0  # to read on after an error, so that the client can read the answer
