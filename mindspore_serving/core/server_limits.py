"""Limits of the requests that clients send, in size and time: a field of `ServerLimits` each.

It knows no protocol. The size of a message is an argument of the functions that start servers.
"""

from dataclasses import dataclass

from mindspore_serving.core.params import param, rows_of


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one HTTP or gRPC server, sizes in bytes and times in seconds.

    Raises InvalidField naming the limit, its value and what is accepted.
    """

    max_connections: int = param(
        4096,
        "open connections, at most half of the descriptors that the process may open; a further "
        "one is answered 503",
        at_least=1,
    )
    max_connections_per_address: int = param(
        3072,
        "open connections from one address, so that other addresses get some; a further one is "
        "answered 503",
        at_least=1,
    )
    max_head: int = param(
        64 << 10, "HTTP: size of request line and headers, or of trailers; else 431", at_least=1024
    )
    max_headers: int = param(100, "HTTP: number of headers, or of trailers; else 431", at_least=1)
    max_pipelined: int = param(
        16,
        "HTTP: requests of a connection that wait for an earlier answer; no more are read",
        at_least=1,
    )
    max_body_memory: int = param(
        2 << 30,
        "memory of the bodies of all unanswered requests, at least of the largest one; a further "
        "body over 64 KiB is answered 429, or RESOURCE_EXHAUSTED. An address gets at most three "
        "quarters of what other addresses leave, a connection three quarters of that, and one of "
        "gRPC at least 64 KiB. A gRPC message counts when it is complete; one that takes over half "
        "a second counts as the largest, and is dropped first",
        at_least=1 << 20,
    )
    max_unsent_memory: int = param(
        2 << 30,
        "memory of all answers that clients have not received. Beyond it HTTP closes the "
        "connection that waits longest, of the address with the largest answers, but never the "
        "last one; gRPC has shares as for bodies, and answers RESOURCE_EXHAUSTED. Queued chunks of "
        "streams are counted apart: beyond the same limit, streams with over 64 KiB end",
        at_least=1 << 20,
    )
    head_timeout: float = param(
        30.0, "HTTP: time from the first to the last byte of the headers; else 408", over=0.0
    )
    body_timeout: float = param(
        600.0,
        "time from the headers to the last byte of a body or message; else 408, or "
        "DEADLINE_EXCEEDED",
        over=0.0,
    )
    idle_timeout: float = param(
        100.0,
        "HTTP: time without a byte from the client, or in which it reads nothing of an answer; "
        "then it is closed, within a request with 408",
        over=0.0,
    )
    linger_timeout: float = param(
        5.0,
        "HTTP: time to go on reading after an error, so that the client can read the answer",
        over=0.0,
    )
    request_timeout: float = param(
        3600.0,
        "time of a request and its answer, streams too; else 504, or DEADLINE_EXCEEDED",
        over=0.0,
    )
    stream_idle_timeout: float = param(
        600.0,
        "time between two chunks of a stream, or messages of a WebSocket; then it ends",
        over=0.0,
    )
    max_streams: int = param(
        1024,
        "HTTP/2 and gRPC: concurrent requests of one connection; the client queues more",
        at_least=1,
    )
    max_metadata: int = param(
        16 << 10, "gRPC: size of the metadata of a call; else RESOURCE_EXHAUSTED", at_least=1024
    )
    keepalive_time: float = param(
        60.0,
        "HTTP/2, gRPC and WebSocket: time without a message, after which the client is pinged",
        at_least=1.0,
    )
    keepalive_timeout: float = param(
        20.0,
        "HTTP/2, gRPC and WebSocket: time until the answer to that ping; then the connection is "
        "closed",
        at_least=1.0,
    )

    def __post_init__(self) -> None:
        for name, row in LIMITS.items():
            row.check(getattr(self, name))


LIMITS = rows_of(ServerLimits)
