"""State that the connections of one HTTP server share, and the interface to a connection."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.access import Entry, ResponseCounter
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.parser import READ_SIZE
from mindspore_serving.frontends.http.unsent import UnsentAnswers
from mindspore_serving.frontends.memory import Quota
from mindspore_serving.frontends.spans import end_http

MAX_STREAMS = 16_384


class OpenConnection(Protocol):
    """A connection, as its server sees it."""

    def end_if_late(self, now: float) -> None:
        """End the connection if its client sends or reads too slowly, or an answer takes too long.

        Called every few seconds; `now` is the loop's time.
        """
        ...

    def shut_down(self, *, closes: bool) -> None:
        """Close after the answers to received requests; an idle connection only if `closes`."""
        ...

    def refuse_incomplete(self) -> None:
        """Refuse incomplete requests, as the server stops."""
        ...

    @property
    def has_pending_answer(self) -> bool:
        """True if the answer to a complete request is not yet written and sent."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


@dataclass(slots=True)
class SharedState:
    """State that the connections of a server share.

    While `is_stopping`, each answer is the last of its connection.
    """

    limits: ServerLimits
    max_body: int  # bytes
    open_exchange: Callable[[RequestHead, ExchangeOutput], Exchange]
    memory: Quota
    responses: ResponseCounter
    unsent: UnsentAnswers
    pool: BodyPool
    connections: set[OpenConnection] = field(default_factory=set)
    is_stopping: bool = False
    accepts_upgrade: Callable[[RequestHead], bool] | None = None  # to a WebSocket
    speaks_http1: bool = True  # else every connection is one of HTTP/2
    # Streams of HTTP/2 that are open on all connections, of which no client has all.
    streams: Quota = field(default_factory=lambda: Quota(MAX_STREAMS))
    # All connections share this buffer: its content is parsed before the loop reads again.
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_SIZE)))

    def entry(self, peer: Any, head: RequestHead | None = None) -> Entry:
        """Return an entry of the access log; without a head, for data that is not HTTP."""
        client = f"{peer[0]}:{peer[1]}" if peer else "unix"
        if head is None:
            return Entry(client, "", "")
        path = head.target.partition(b"?")[0].decode("latin-1")
        length = head.fields.get(b"content-length", b"0")
        num_received = int(length) if length.isdigit() else None
        return Entry(client, head.method.decode("latin-1"), path, num_received)

    def count(self, exchange: Exchange) -> None:
        """Count an exchange that is over, and end its span and its entry in the access log."""
        if exchange.span is not None:
            end_http(exchange.span, int(exchange.status), exchange.route_path())
        entry = exchange.entry
        if entry is None:
            self.responses.counts[exchange.protocol, exchange.status] += 1
        else:
            exchange.complete_entry(entry)
            self.responses.add(exchange.protocol, exchange.status, entry, exchange.num_sent)
