"""The open streams of a connection: how they begin, get their bodies, and end."""

from collections import OrderedDict
from collections.abc import Iterator

from mindspore_serving.errors import DeadlineExceeded
from mindspore_serving.frontends.access import CLIENT_LEFT
from mindspore_serving.frontends.http.exchange import Exchange, RefusedExchange
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.shared import SharedState
from mindspore_serving.frontends.http2.budget import ANSWERED, RESET, FrameBudget
from mindspore_serving.frontends.http2.fields import FieldReader
from mindspore_serving.frontends.http2.frames import ConnectionFault, ErrorCode, StreamFault
from mindspore_serving.frontends.http2.sender import WELL_FILLED, FrameSender
from mindspore_serving.frontends.http2.stream import HIGH_WATER, Http2Stream
from mindspore_serving.frontends.memory import NO_MEMORY, Allowance

_FREE_BODIES = (
    1 << 20
)  # bytes of bodies of a connection whose beginnings its exchanges do not count
_FREE_BODY = 64 << 10  # bytes of a body that its exchange does not count
_MANY_BLOCKED = 16  # streams whose small answers together count as unsent
_NUM_RESET = 1_000  # streams of which late frames are ignored
_MAX_DISCARDED = 16 << 20  # bytes of a body after its answer
_NO_HEAD = RequestHead(b"", b"", "2", [], {}, keep_alive=True)


class StreamTable:
    """The streams of a connection by their numbers, of which `last_id` is the client's last.

    Streams from `refused_from` on are ignored: the client was told so.
    """

    def __init__(
        self, shared: SharedState, memory: Allowance, sender: FrameSender, budget: FrameBudget
    ) -> None:
        self._shared, self._sender, self._budget = shared, sender, budget
        self.memory, self.pool = memory, shared.pool
        self._room = shared.streams.allowance(sender.describe("peername"))
        self._num_free = 0  # bytes that exchanges do not count
        has_websockets = shared.accepts_upgrade is not None
        self._fields = FieldReader(shared.limits, has_websockets=has_websockets)
        self._streams: dict[int, Http2Stream] = {}
        self._reset: OrderedDict[int, None] = OrderedDict()  # by us; frames may be on their way
        self.last_id = 0
        self.refused_from: int | None = None
        self.describe, self.send_whole = sender.describe, sender.send_whole

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Http2Stream]:
        return iter(list(self._streams.values()))

    def get(self, number: int) -> Http2Stream | None:
        """Return an open stream."""
        return self._streams.get(number)

    def is_idle(self, number: int) -> bool:
        """Return whether no stream of the client had this number."""
        return number > self.last_id or not number & 1

    # --- frames of the client ---

    def take_block(self, number: int, block: bytes, *, is_last: bool) -> None:
        """Take a whole field block: the head of a request, or trailers."""
        if number > self.last_id:
            self.last_id = number
            self._open(number, block, is_last=is_last)
            return
        stream = self._streams.get(number)
        are_trailers = self._fields.read_trailers(block)
        if stream is None or stream.has_ended:
            self._refuse(number, "HEADERS")
            return
        try:
            if not (are_trailers and is_last):
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers are not those of a request")
            stream.end()
            self._remove_if_over(stream)
        except StreamFault as fault:
            self.fail(number, fault)

    def _open(self, number: int, block: bytes, *, is_last: bool) -> None:
        """Begin the exchange of a new stream, unless it is refused."""
        refusal = None
        try:
            head = self._fields.read_head(block)
        except HeadRefusal as error:
            head, refusal = _NO_HEAD, error
        except StreamFault as fault:
            self.fail(number, fault)
            return
        if self.refused_from is not None or number in self._reset:
            return
        if len(self._streams) >= self._shared.limits.max_streams or not self._room.take(1):
            self.fail(number, StreamFault(ErrorCode.REFUSED_STREAM, "too many streams"))
            return
        stream = Http2Stream(self, number, head, self._sender.stream_window)
        if is_last:
            stream.has_ended = True
        self._streams[number] = stream
        if self._sender.is_full:
            stream.flow.fill()
        try:
            stream.start(self._open_exchange(stream, head, refusal))
            if is_last and not stream.is_closed:
                stream.end()
        except StreamFault as fault:
            self.fail(number, fault)
        if stream.is_closed:
            self._remove_if_over(stream)

    def _open_exchange(
        self, stream: Http2Stream, head: RequestHead, refusal: HeadRefusal | None
    ) -> Exchange:
        exchange: Exchange
        try:
            if refusal is not None:
                raise refusal
            exchange = self._shared.open_exchange(head, stream)
        except HeadRefusal as error:
            exchange = RefusedExchange(stream, error)
        if self._shared.responses.is_logged:
            peer = self.describe("peername")
            exchange.entry = self._shared.entry(peer, None if refusal else head)
        return exchange

    def take_body(self, number: int, data: memoryview, size: int, *, is_last: bool) -> None:
        """Take a part of a body, for which the client has spent `size` bytes of its windows."""
        stream = self._streams.get(number)
        if stream is None or stream.has_ended:
            self._refuse(number, "DATA")
            return
        if len(data) >= WELL_FILLED:
            self._budget.earn(1)
        stream.receive_window -= size
        try:
            if stream.receive_window < 0:
                raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is over")
            self._hold(stream, len(data))
            stream.receive(data, size)
            if is_last:
                stream.end()
            elif stream.num_discarded > _MAX_DISCARDED:
                raise StreamFault(ErrorCode.NO_ERROR, "the answer needs no body")
        except StreamFault as fault:
            self.fail(number, fault)
        if stream.is_closed:
            self._remove_if_over(stream)

    def _hold(self, stream: Http2Stream, size: int) -> None:
        """Count the beginning of a body if the connection has many of them.

        An exchange counts what follows; of HTTP/1.1 a connection has one beginning alone.
        """
        amount = min(size, _FREE_BODY - stream.num_free)
        if not amount:
            return
        stream.num_free += amount
        self._num_free += amount
        if self._num_free > _FREE_BODIES:
            if not self.memory.take(amount):
                raise StreamFault(ErrorCode.ENHANCE_YOUR_CALM, NO_MEMORY)
            stream.num_held += amount

    def _refuse(self, number: int, name: str) -> None:
        """Answer a frame of a stream that the client has ended, or never opened."""
        if self.is_idle(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} of an idle stream")
        if number in self._streams:
            self.fail(number, StreamFault(ErrorCode.STREAM_CLOSED, f"{name} after its end"))
        elif number not in self._reset:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{name} of a closed stream")

    def fail(self, number: int, fault: StreamFault) -> None:
        """Reset a stream for what its client has done."""
        self._budget.spend(RESET)
        stream = self._streams.get(number)
        if stream is not None:
            self.forget(stream)
        self._send_reset(number, fault.code)

    # --- called by streams ---

    def give_credit(self, stream: Http2Stream, amount: int) -> None:
        stream.receive_window += amount
        self._sender.send_credit(stream.id, amount)

    def send_fields(self, stream: Http2Stream, block: bytes) -> None:
        self._sender.send_fields(stream, block)

    def send_pending(self, stream: Http2Stream) -> None:
        self._sender.send_pending(stream)
        if stream.is_full or len(self._sender.blocked) > _MANY_BLOCKED:
            self._shared.unsent.add(self._sender)

    def finish(self, stream: Http2Stream) -> None:
        exchange, stream.exchange = stream.exchange, None
        if exchange is not None:
            self._shared.count(exchange)
            self._budget.earn(ANSWERED)
        if not stream.is_closed:
            self.send_pending(stream)
        self._remove_if_over(stream)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        if self._streams.get(stream.id) is stream:
            self.forget(stream)
            self._send_reset(stream.id, code)

    # --- progress, and the end ---

    def move_on(self, streams: "list[Http2Stream] | StreamTable") -> None:
        """Let exchanges write again whose data is mostly sent, and remove streams that are over."""
        for stream in streams:
            is_full = stream.is_full and not self._sender.is_full
            if is_full and stream.num_pending <= HIGH_WATER // 2:
                stream.flow.empty()
                if stream.exchange is not None:
                    stream.exchange.resume()
            self._remove_if_over(stream)
        if not (self._sender.is_full or self._sender.blocked):
            self._shared.unsent.discard(self._sender)

    def _remove_if_over(self, stream: Http2Stream) -> None:
        """Remove a stream whose answer is sent and whose request has ended."""
        if stream.is_closed and stream.has_ended and self._streams.get(stream.id) is stream:
            self._drop(stream)

    def forget(self, stream: Http2Stream) -> None:
        """End the exchange of a stream whose answer nobody reads, and remove the stream."""
        exchange, stream.exchange = stream.exchange, None
        if exchange is not None:
            exchange.disconnect()
            if not exchange.is_cut:
                exchange.status = CLIENT_LEFT
            self._shared.count(exchange)
        self._drop(stream)

    def _drop(self, stream: Http2Stream) -> None:
        stream.drop()
        if self._sender.blocked:
            self._sender.blocked.pop(stream.id, None)
        if self._streams.pop(stream.id, None) is not None:
            self._room.give_back(1)
            self._num_free -= stream.num_free
            if stream.num_held:
                self.memory.give_back(stream.num_held)

    def _send_reset(self, number: int, code: ErrorCode) -> None:
        self._reset[number] = None
        if len(self._reset) > _NUM_RESET:
            self._reset.popitem(last=False)
        self._sender.send_reset(number, code)

    def end_if_late(self, now: float) -> None:
        """End streams whose request or answer takes too long; `now` is the loop's time."""
        limits = self._shared.limits
        for stream in self:
            if stream.seen_at is None:
                stream.seen_at = now
            exchange, age = stream.exchange, now - stream.seen_at
            if exchange is None:
                if not stream.has_ended and stream.is_closed and age > limits.linger_timeout:
                    self.reset(stream, ErrorCode.NO_ERROR)
            elif age > limits.request_timeout:
                text = f"no answer within {limits.request_timeout:g} seconds"
                exchange.expire(DeadlineExceeded(text))
            elif (
                exchange.is_timed
                and age > limits.body_timeout
                and not (stream.has_ended or stream.has_head)
                and not exchange.expire_body()
            ):
                stream.refuse(HeadRefusal(408, "The request arrived too slowly."))
