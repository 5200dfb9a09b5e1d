"""The limits of what clients may send to a server, and of the time that it takes: one table, each
row a field of `ServerLimits`.  Knows no protocol; how large a message may be is an argument of the
functions that start servers.
"""

from dataclasses import dataclass

from mindspore_serving.core.params import param, rows_of


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Of one HTTP or gRPC server.  Sizes are in bytes, times in seconds.

    Raises InvalidField naming the limit, what was given and what is accepted.
    """

    max_connections: int = param(
        4096,
        "open connections, and of the descriptors that the process may open at most half (HTTP) or "
        "a quarter (gRPC); HTTP answers one more with 503, gRPC closes it",
        at_least=1,
    )
    max_connections_per_address: int = param(
        3072,
        "those from one address, so that it leaves some to others; HTTP answers one more with 503, "
        "of gRPC the most silent are closed within a second",
        at_least=1,
    )
    max_head: int = param(
        64 << 10, "HTTP: request line and headers, or trailers; else 431", at_least=1024
    )
    max_headers: int = param(
        100, "HTTP: headers of a request, or fields of its trailers; else 431", at_least=1
    )
    max_pipelined: int = param(
        16,
        "HTTP: requests of one connection that wait for an earlier answer; others are not read",
        at_least=1,
    )
    max_body_memory: int = param(
        2 << 30,
        "bodies of requests that are not answered, together: at least one of the largest; one more "
        "that is over 64 KiB is answered 429, or RESOURCE_EXHAUSTED. An address has at most three "
        "quarters of what others leave, a connection of it three quarters of that, and of gRPC "
        "64 KiB in any case. A message of gRPC counts when all of it has come; one that takes over "
        "half a second counts as the largest, and gives way",
        at_least=1 << 20,
    )
    max_unsent_memory: int = param(
        2 << 30,
        "answers that clients have not taken, together; where there are more, HTTP cuts those off "
        "that wait for longest, of the address that has most, and the last one never; gRPC, "
        "messages of streams as well: shares as of bodies; else RESOURCE_EXHAUSTED. Pieces of "
        "streams that wait behind a client count for themselves: where all of them have more, "
        "those with over 64 KiB end",
        at_least=1 << 20,
    )
    head_timeout: float = param(
        30.0, "HTTP: a head, from its first byte to its last; else 408", over=0.0
    )
    body_timeout: float = param(
        600.0,
        "a body or message, from the end of the head to its last byte; else 408, or "
        "DEADLINE_EXCEEDED",
        over=0.0,
    )
    idle_timeout: float = param(
        100.0,
        "HTTP: silence of a client, or an answer that it does not take; then it is closed, in the "
        "middle of a request with 408",
        over=0.0,
    )
    linger_timeout: float = param(
        5.0, "HTTP: to read on after an error, so that the client can read the answer", over=0.0
    )
    request_timeout: float = param(
        3600.0,
        "a whole request, also if its answer is a stream; else 504, or DEADLINE_EXCEEDED",
        over=0.0,
    )
    stream_idle_timeout: float = param(
        600.0, "a stream, from one piece of the answer to the next; then it ends", over=0.0
    )
    max_streams: int = param(
        1024, "gRPC: calls of one connection at once; the client holds more back", at_least=1
    )
    max_metadata: int = param(
        16 << 10, "gRPC: metadata of a call; else RESOURCE_EXHAUSTED", at_least=1024
    )
    keepalive_time: float = param(
        60.0, "gRPC: silence of a connection, until it is asked for a sign of life", at_least=1.0
    )
    keepalive_timeout: float = param(20.0, "gRPC: for that sign; then it is closed", at_least=1.0)

    def __post_init__(self) -> None:
        for name, row in LIMITS.items():
            row.check(getattr(self, name))


LIMITS = rows_of(ServerLimits)
