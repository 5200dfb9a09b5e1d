"""Clients that leave, send slowly, do not read, or come in great numbers."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc

from mindspore_serving.client.caller import Stub
from mindspore_serving.client.messages import to_request
from tests.chaos import asking, raw, states
from tests.chaos.fault import BOUND, Fault, Must, Scene, Step
from tests.chaos.server import KEY, Site
from tests.e2e.harness import eventually

MIB = 1 << 20
NUM_LEAVING = 30  # clients of a row
SMALL = Must(peak=64)
KEYED = Site(keys=(KEY,))
CHUNKED = b"POST /model/toy:echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = b"POST /model/toy:echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
# Limits that a slow client reaches before its request counts as hung.
STRICT = Site(limits=(("head_timeout", 3), ("body_timeout", 4), ("request_timeout", 8)))
SLOWLY = Must(own=frozenset({408}))
# In the headers that end a call: DEADLINE_EXCEEDED.
TOO_SLOW_RPC = b"\x0bgrpc-status\x014"


def rows() -> Iterator[Fault]:
    yield from _leaving()
    yield from _slow()
    yield from _floods()
    yield from _without_key()


def _leaving() -> Iterator[Fault]:
    for place, classic, language in (
        ("when they have connected", 0.0, 0.0),
        ("in the head", 0.2, 0.1),
        ("in the body", 0.99, 0.9),
        ("when they have sent their request", 1.0, 1.0),
    ):
        yield Fault(f"clients reset the connection {place}", states.idle, _leave(classic, language))
    yield Fault(
        "clients reset the connection in a stream",
        states.idle,
        _leave(1.0, 1.0, reads=True),
    )
    yield Fault("clients of gRPC leave in a call", states.idle, _leave_grpc)


def _leave(classic: float, language: float, *, reads: bool = False) -> Step:
    """Send these shares of a request, read a little of the answer, reset."""

    def leave(scene: Scene) -> None:
        server = scene.server
        body = {"prompt": "The sea is", "max_tokens": 900, "ignore_eos": True, "stream": True}
        for whole, share in (
            (raw.request(server, "/model/toy:count_stream", {"instances": [{"x": 900}]}), classic),
            (raw.request(server, "/v1/completions", body), language),
        ):
            for _ in range(NUM_LEAVING):
                stream = raw.connect(server)
                stream.sendall(whole[: int(len(whole) * share)])
                if reads:
                    assert (code := raw.first_line(stream)) == 200, code
                raw.reset(stream)

    return leave


def _leave_grpc(scene: Scene) -> None:
    request = to_request("toy", "nap", 0, {"x": 0.5})
    for _ in range(NUM_LEAVING):
        with grpc.insecure_channel(f"127.0.0.1:{scene.server.grpc}") as channel:
            calls = [Stub(channel).Predict.future(request) for _ in range(10)]
            calls[0].cancel()


# --- slow -------------------------------------------------------------------------------------


def _slow() -> Iterator[Fault]:
    for what, start, drop in (
        ("head", b"GET /health HTTP/1.1\r\nx: ", b"x"),
        ("body", HEADERS, b"x"),
        ("body in chunks", CHUNKED, b"1\r\nx\r\n"),
        ("trailers", CHUNKED + b"0\r\nx: ", b"x"),
    ):
        yield Fault(f"a client drips its {what}", states.idle, _drip(start, drop), SLOWLY, STRICT)
    yield Fault(
        "a client of gRPC drips its message",
        states.idle,
        _drip_grpc,
        Must(own=frozenset({504})),
        STRICT,
    )
    yield Fault(
        "a request that is never answered",
        states.idle,
        lambda scene: scene.cause(asking.classic(scene.server, "nap", 1e8)),
        Must(own=frozenset({504, 503})),
        STRICT,
    )
    yield Fault(
        "clients do not read their streams",
        states.idle,
        _never_read,
        Must(peak=128),
        is_short=True,
    )


def _drip(start: bytes, drop: bytes) -> Step:
    return lambda scene: scene.cause(raw.dripping(scene.server, start, drop))


def _drip_grpc(scene: Scene) -> None:
    """The connection stays; the call is ended."""
    start, drop = _grpc_drops()
    scene.cause(raw.dripping(scene.server, start, drop, "grpc", _status_of_rpc))


def _status_of_rpc(received: bytes) -> "asking.Code | None":
    return 504 if TOO_SLOW_RPC in received else None


def _grpc_drops() -> tuple[bytes, bytes]:
    """The start of a call of Predict in HTTP/2, and one byte of its message."""
    fields = (
        b"\x83\x86"  # :method POST, :scheme http
        b"\x04\x2a/mindspore.serving.proto.MSService/Predict"
        b"\x01\x01x"  # :authority
        b"\x0f\x10\x10application/grpc"  # content-type
        b"\x00\x02te\x08trailers"
    )
    head = len(fields).to_bytes(3, "big") + b"\x01\x04" + (1).to_bytes(4, "big") + fields
    begin = _data(b"\x00\x00\x0f\x42\x40")  # a message of 1,000,000 bytes
    settings = bytes(3) + b"\x04\x00" + bytes(4)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + head + begin, _data(b"x")


def _data(payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + b"\x00\x00" + (1).to_bytes(4, "big") + payload


def _never_read(scene: Scene) -> None:
    whole = raw.request(scene.server, "/model/toy:pour_stream", {"instances": [{"x": 1}]})
    for _ in range(3):
        stream = scene.undo.enter_context(socket.socket())
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        stream.connect(("127.0.0.1", scene.server.http))
        stream.sendall(whole)
        assert (code := raw.first_line(stream)) == 200, code
    eventually(lambda: not states.running(scene.server, "toy"), what="the streams are ended")


# --- many -------------------------------------------------------------------------------------


def _floods() -> Iterator[Fault]:
    yield Fault("2,000 connections that send nothing", states.idle, _connect_only, is_short=True)
    yield Fault(
        "more requests than the limit",
        states.idle,
        lambda scene: scene.cause(*[asking.classic(scene.server, "nap", 0.02) for _ in range(600)]),
        Must(own=frozenset({200, 429})),
        site=Site(limit=150),
        beside=(),  # who comes while it is full is refused
    )
    yield Fault("500 requests on a connection at once", states.idle, _pipeline, SMALL)
    for what, start, piece in (
        ("trailers", CHUNKED + b"0\r\n", b"a:\r\n" * 16384),
        ("one header", b"GET / HTTP/1.1\r\na: ", b"a" * 65536),
        ("headers", b"GET / HTTP/1.1\r\n", b"a:\r\n" * 16384),
        ("a chunk extension", CHUNKED + b"1;", b"a" * 65536),
    ):
        do = _pour(start, piece)
        yield Fault(f"60 MB of {what}", states.idle, do, Must(own=frozenset({431}), peak=64))
    yield Fault(
        "8 MB in chunks of one byte",
        states.idle,
        _pour(CHUNKED, b"1\r\nx\r\n" * 8192, 8 * MIB, b"0\r\n\r\n"),
        Must(own=frozenset({400}), peak=64),
    )
    yield Fault("2,000 calls of gRPC that are cancelled at once", states.idle, _cancel_calls, SMALL)


def _connect_only(scene: Scene) -> None:
    server = scene.server
    for _ in range(2000):
        scene.undo.enter_context(raw.connect(server))
    scene.ask(asking.classic(server, "double", 1), asking.completion(server, 4))
    for flight in scene.flights:
        flight.join(BOUND)


def _pipeline(scene: Scene) -> None:
    whole = raw.request(scene.server, "/model/toy:echo", {"instances": [{"x": 1}]})
    with raw.connect(scene.server) as stream:
        stream.sendall(whole * 500)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 500:
            piece = stream.recv(MIB)
            assert piece, "closed before the last answer"
            answers += piece
    other = raw.connect(scene.server)
    other.sendall(whole * 500)
    raw.reset(other)


def _pour(start: bytes, piece: bytes, size: int = 60 * MIB, end: bytes = b"") -> Step:
    def send(stream: socket.socket) -> None:
        stream.sendall(start)
        for _ in range(size // len(piece)):
            stream.sendall(piece)
        stream.sendall(end)

    return lambda scene: scene.cause(raw.sending(scene.server, send))


def _cancel_calls(scene: Scene) -> None:
    request = to_request("toy", "nap", 0, {"x": 0.01})
    with grpc.insecure_channel(f"127.0.0.1:{scene.server.grpc}") as channel:
        stub = Stub(channel)
        for _ in range(2000):
            stub.Predict.future(request).cancel()


# --- without a key ----------------------------------------------------------------------------


def _without_key() -> Iterator[Fault]:
    refused = Must(own=frozenset({401}), peak=64)
    yield Fault("bodies of 90 MB without a key", states.idle, _bodies, refused, KEYED)
    yield Fault(
        "six messages of 95 MB without a key, by gRPC",
        states.idle,
        _messages,
        refused,
        KEYED,
    )


def _bodies(scene: Scene) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000000\r\n\r\n"
    for path in (b"/model/toy:echo", b"/v1/chat/completions", b"/generate"):
        scene.cause(raw.sending(scene.server, lambda s, path=path: _send_body(s, head % path)))


def _send_body(stream: socket.socket, head: bytes) -> None:
    stream.sendall(head)
    for _ in range(90):
        stream.sendall(bytes(1_000_000))


def _messages(scene: Scene) -> None:
    options = [("grpc.max_send_message_length", 512 * MIB)]
    request = to_request("toy", "echo", 0, {"x": bytes(95_000_000)})
    with ExitStack() as stack:
        for _ in range(6):
            where = f"127.0.0.1:{scene.server.grpc}"
            channel = stack.enter_context(grpc.insecure_channel(where, options=options))
            call = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
            scene.cause(lambda flight, call=call: _refusal(call.future(request)))
        until = time.monotonic() + BOUND
        for flight in scene.causes:
            flight.wait(until)


def _refusal(call: grpc.Future) -> asking.Code:
    error = call.exception()
    return asking.code_of_rpc(error) if isinstance(error, grpc.RpcError) else 200
