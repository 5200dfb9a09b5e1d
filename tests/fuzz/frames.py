"""Sequences of HTTP/2 frames: conversations of clients, side by side on a connection, and edits.

A seed and a number decide a sequence.
"""

import base64
import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import hpack

from mindspore_serving.frontends.http2.frames import PREFACE
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.fuzz import byte_edits, json_edits

DATA, HEADERS, PRIORITY, RST, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
MAX_SIZE = 1 << 18  # bytes of a sequence
_STREAMS = (0, 1, 2, 3, 5, 7, 99, 2**31 - 1)
_LONG = "v" * 3000
_ODD_FIELDS = [
    *((":method", each) for each in ("GET", "POST", "OPTIONS", "CONNECT", "", "G T")),
    *((":path", each) for each in ("", "*", "/", "/model/add:m", "/a\r\nb", "/" + _LONG)),
    *(("content-length", each) for each in ("0", "5", "-1", "99999999999999999999", "five")),
    *(("content-type", each) for each in (
        "application/grpc", "application/grpc-web", "application/grpc-web-text",
        "application/json", "application/proto", "application/connect+json", "",
    )),
    *(("grpc-timeout", each) for each in ("1n", "0S", "99999999H", "x", "-1S")),
    *(("grpc-encoding", each) for each in ("gzip", "deflate", "identity", "br", "")),
    *(("content-encoding", each) for each in ("gzip", "br", "")),
    *(("connect-timeout-ms", each) for each in ("0", "1", "9999999999", "x")),
    ("connect-protocol-version", "2"), ("expect", "100-continue"), ("x-bin", "****"),
    (":protocol", "websocket"), (":status", "200"), ("connection", "close"), ("te", "gzip"),
    ("X-Upper", "y"), ("x y", "z"), ("", ""), ("x", "a\0b"), ("x", _LONG), ("cookie", "a=b"),
    ("transfer-encoding", "chunked"), ("host", "x"), ("accept-encoding", "gzip"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame; `size` is the length that its head names, None for that of the payload."""

    kind: int
    flags: int = 0
    stream: int = 0
    payload: bytes = b""
    size: int | None = None

    def to_bytes(self) -> bytes:
        size = len(self.payload) if self.size is None else self.size
        head = struct.pack(">IBI", (size & 0xFFFFFF) << 8 | self.kind, self.flags, self.stream)
        return head + self.payload


Conversation = Callable[["Maker", int], list[Frame]]


class Maker:
    """The sequence of a number."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = Random(f"{seed} {number}")
        self._encoder = hpack.Encoder()
        self._has_table = self.random.random() < 0.4  # else a lost block spoils no other
        self._is_odd = self.random.random() < 0.3  # edits the fields of requests, too

    def make(self) -> bytes:
        """The bytes of a client."""
        random = self.random
        if random.random() < 0.03:
            return byte_edits.edit(self._http1(), random)
        conversations = random.choices(CONVERSATIONS, k=random.choice((1, 1, 2, 3, 6)))
        parts = [each(self, 2 * i + 1) for i, each in enumerate(conversations)]
        frames = [Frame(SETTINGS, 0, 0, self._settings()), *self._merged(parts)]
        for _ in range(random.choice((0, 1, 1, 2, 4, 8))):
            frames = self._edited(frames)
        data = PREFACE + b"".join(each.to_bytes() for each in frames)[:MAX_SIZE]
        if random.random() < 0.1:
            data = byte_edits.edit(data, random)
        return data

    def head(self, stream: int, flags: int, *fields: tuple[str, str]) -> list[Frame]:
        """The head of a request, in one frame or more."""
        random, all_fields = self.random, [*fields]
        if self._is_odd:
            for _ in range(random.randint(1, 3)):
                at, field = random.randrange(len(all_fields) + 1), random.choice(_ODD_FIELDS)
                all_fields[at : at + random.choice((0, 1))] = [field]
        listed = [(*field, not self._has_table) for field in all_fields]
        block = self._encoder.encode(listed, huffman=random.random() < 0.5)
        if random.random() < 0.8:
            return [Frame(HEADERS, flags | END_HEADERS, stream, block)]
        cuts = sorted(random.randrange(len(block) + 1) for _ in range(random.randint(1, 3)))
        parts = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
        first, *rest = parts
        if random.random() < 0.5:
            first = struct.pack(">BIB", 3, 0, 9) + first + bytes(3)
            flags |= PADDED | HAS_PRIORITY
        frames = [Frame(HEADERS, flags, stream, first)]
        frames += [Frame(CONTINUATION, 0, stream, part) for part in rest]
        frames[-1] = replace(frames[-1], flags=frames[-1].flags | END_HEADERS)
        return frames

    def post(self, stream: int, path: str, body: bytes, *fields: tuple[str, str]) -> list[Frame]:
        """A request with a body in one frame or more."""
        frames = self.head(stream, 0, *_fields("POST", path), *fields)
        random = self.random
        while len(body) > 1 and random.random() < 0.3:
            cut = random.randint(1, min(len(body), 16_384))
            frames.append(Frame(DATA, 0, stream, body[:cut]))
            body = body[cut:]
        while len(body) > 16_384:
            frames.append(Frame(DATA, 0, stream, body[:16_384]))
            body = body[16_384:]
        if random.random() < 0.2:
            return [
                *frames,
                Frame(DATA, PADDED, stream, b"\x05" + body + bytes(5)),
                *self.head(stream, END_STREAM, ("x-checksum", "1")),
            ]
        return [*frames, Frame(DATA, END_STREAM, stream, body)]

    def text(self, body: dict[str, object]) -> bytes:
        """A body of JSON, edited now and then."""
        if self.random.random() < 0.3:
            return json_edits.dump(json_edits.edit(body, [], self.random))
        return json.dumps(body).encode()

    def message(self) -> bytes:
        """A message to MSService, edited now and then."""
        request = pb.PredictRequest()
        request.servable_spec.name, request.servable_spec.method_name = "add", "m"
        request.instances.add().items["x"].bytes_val.append(b"x" * self.random.choice((0, 9, 999)))
        data = bytes(request.SerializeToString())
        return byte_edits.edit(data, self.random) if self.random.random() < 0.2 else data

    def _http1(self) -> bytes:
        kinds = ("application/grpc-web", "application/grpc-web-text", "application/proto")
        content_type, body = self.random.choice(kinds).encode(), framed(self.message())
        if content_type.endswith(b"text"):
            body = base64.b64encode(body)
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
        return head % (PREDICT.encode(), content_type, len(body)) + body

    def _settings(self) -> bytes:
        chosen = self.random.sample(SETTING_VALUES, k=self.random.choice((0, 0, 1, 2)))
        return b"".join(struct.pack(">HI", *pair) for pair in chosen)

    def _merged(self, parts: list[list[Frame]]) -> list[Frame]:
        """The frames of all, in the order of each; a head stays in one piece."""
        frames = []
        while parts := [each for each in parts if each]:
            part = self.random.choice(parts) if self.random.random() < 0.7 else parts[0]
            frames.append(part.pop(0))
            while part and part[0].kind == CONTINUATION:
                frames.append(part.pop(0))
        return frames

    def _edited(self, frames: list[Frame]) -> list[Frame]:
        random, at = self.random, self.random.randrange(len(frames) or 1)
        before, after = frames[:at], frames[at + 1 :]
        here = frames[at] if frames else Frame(PING, 0, 0, bytes(8))
        kind = random.randrange(11)
        if kind == 0:
            return [*before, *after]
        if kind == 1:
            times = random.choice((2, 2, 3, 50, 2500))
            return [*before, *[here] * min(times, MAX_SIZE // (9 + len(here.payload))), *after]
        if kind == 2:
            here = replace(here, kind=random.choice((*range(10), 200)))
        elif kind == 3:
            here = replace(here, flags=here.flags ^ (1 << random.randrange(8)))
        elif kind == 4:
            here = replace(here, stream=random.choice(_STREAMS))
        elif kind == 5:
            here = replace(here, payload=byte_edits.edit(here.payload, random)[:16_384])
        elif kind == 6:
            here = replace(here, size=random.choice((0, 1, 8, 16_384, 65_537, 2**24 - 1)))
        elif kind == 7:
            random.shuffle(after)
        elif kind == 8:
            return [*before, here]
        else:
            return [*before, self._inserted(), here, *after]
        return [*before, here, *after]

    def _inserted(self) -> Frame:
        random = self.random
        stream = random.choice(_STREAMS)
        number = struct.pack(">I", random.choice((0, 1, 100, 65_535, 2**31 - 1, 2**32 - 1)))
        return random.choice(
            (
                Frame(PING, random.choice((0, 1)), 0, bytes(8)),
                Frame(WINDOW, 0, stream, number),
                Frame(RST, 0, stream, number),
                Frame(PRIORITY, 0, stream, number + b"\x10"),
                Frame(GOAWAY, 0, 0, number * 2),
                Frame(SETTINGS, random.choice((0, 1)), 0, self._settings()),
                Frame(PROMISE, END_HEADERS, stream, number),
                Frame(
                    DATA, random.choice((0, 1, 8)), stream, random.randbytes(random.randrange(9))
                ),
                Frame(
                    HEADERS, random.randrange(64), stream, random.randbytes(random.randrange(30))
                ),
                Frame(random.randrange(256), random.randrange(256), stream, random.randbytes(8)),
            )
        )


PREDICT = "/mindspore.serving.proto.MSService/Predict"
TESTED = "/grpc.testing.TestService"
GRPC = (("content-type", "application/grpc"), ("te", "trailers"))
SETTING_VALUES = [
    *((1, value) for value in (0, 1, 100, 4096, 2**32 - 1)),
    *((2, value) for value in (0, 1, 2)),
    *((3, value) for value in (0, 1, 2**32 - 1)),
    *((4, value) for value in (0, 1, 100, 65_535, 2**31 - 1, 2**31)),
    *((5, value) for value in (0, 16_384, 2**24 - 1, 2**24)),
    *((6, value) for value in (0, 100)),
    (8, 1),
    (99, 7),
]


def framed(data: bytes, flag: int = 0) -> bytes:
    """A message of gRPC with its prefix."""
    return struct.pack(">BI", flag, len(data)) + data


def _fields(method: str, path: str) -> list[tuple[str, str]]:
    return [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path)]


def _get(maker: Maker, stream: int) -> list[Frame]:
    path = maker.random.choice(("/health", "/livez", "/page/app.css", "/metrics", "/nothing"))
    return maker.head(stream, END_STREAM, *_fields("GET", path))


def _rest(maker: Maker, stream: int) -> list[Frame]:
    body = maker.text({"instances": [{"x": 1}]})
    return maker.post(stream, "/model/add:m", body, ("content-length", str(len(body))))


def _call(maker: Maker, stream: int) -> list[Frame]:
    return maker.post(stream, PREDICT, framed(maker.message()), *GRPC, ("x-request-id", "a"))


def _compressed_call(maker: Maker, stream: int) -> list[Frame]:
    body = framed(gzip.compress(maker.message(), mtime=0), 1)
    return maker.post(stream, PREDICT, body, *GRPC, ("grpc-encoding", "gzip"))


def _stream(maker: Maker, stream: int) -> list[Frame]:
    outputs = [(1, 0), (30_000, 0), (70_000, 0), (5, 1000), (5, 10**9)]
    chosen = maker.random.sample(outputs, k=maker.random.randint(0, 3))
    messages = [
        b"\x12" + bytes((len(one),)) + one for one in (_parameters(*pair) for pair in chosen)
    ]
    body = b"".join(map(framed, messages))
    return maker.post(stream, f"{TESTED}/FullDuplexCall", body, *GRPC, ("grpc-timeout", "1S"))


def _parameters(size: int, microseconds: int) -> bytes:
    return b"\x08" + _varint(size) + b"\x10" + _varint(microseconds)


def _varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _upload(maker: Maker, stream: int) -> list[Frame]:
    body = framed(b"\x0a\x04\x12\x02xx" * maker.random.choice((1, 3000, 12_000)))
    return maker.post(stream, f"{TESTED}/StreamingInputCall", body, *GRPC)


def _web(maker: Maker, stream: int) -> list[Frame]:
    body, is_text = framed(maker.message()), maker.random.random() < 0.5
    content_type = "application/grpc-web-text" if is_text else "application/grpc-web+proto"
    body = base64.b64encode(body) if is_text else body
    return maker.post(stream, PREDICT, body, ("content-type", content_type))


def _connect(maker: Maker, stream: int) -> list[Frame]:
    body = maker.text({"servableSpec": {"name": "add", "methodName": "m"}, "instances": [{}]})
    fields = ("content-type", "application/json"), ("connect-protocol-version", "1")
    return maker.post(stream, PREDICT, body, *fields)


def _given_up(maker: Maker, stream: int) -> list[Frame]:
    return [*_call(maker, stream), Frame(RST, 0, stream, struct.pack(">I", 8))]


def _slow_reader(maker: Maker, stream: int) -> list[Frame]:
    updates = [Frame(WINDOW, 0, stream, struct.pack(">I", 100)) for _ in range(5)]
    return [Frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 10)), *_get(maker, stream), *updates]


CONVERSATIONS: tuple[Conversation, ...] = (
    _get,
    _rest,
    _call,
    _compressed_call,
    _stream,
    _upload,
    _web,
    _connect,
    _given_up,
    _slow_reader,
)
