"""Where the microseconds of a request go, step by step, without sockets or other processes.

Of a RESTful request, each by a connection of its own, and of a gRPC call, all by one connection.

The real parts are driven by hand: the HTTP protocol with a transport that drops what it is given,
the dispatcher, the link, the frames, and the worker's loop over a loaded servable.  What is left
out is the kernel: reading and writing sockets, and waking the other process.  What that takes at
least is measured apart, by processes that do nothing but pass a message on.

    python -m benchmarks.request_cost [--rounds 2000]
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hpack
import uvloop

from benchmarks.contenders import RAW_ANSWER, ms_request
from benchmarks.load import frame as grpc_frame
from benchmarks.report import print_json, print_table
from mindspore_serving.cluster.base import Launched
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.http.connection import HttpConnection
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.http2.connection import Http2Connection
from mindspore_serving.frontends.http2.frames import (
    DEFAULT_WINDOW,
    MAX_WINDOW,
    PREFACE,
    Flag,
    FrameType,
    frame,
    u32,
)
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.ipc.arena import NoArena
from mindspore_serving.ipc.messages import Done, Setup, ToMaster, ToWorker, Work
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.link import Link
from mindspore_serving.process.channel import encode, message_decoder
from mindspore_serving.worker.connection import Inbox
from mindspore_serving.worker.connection import MasterConnection as WorkerConnection
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.loading import load
from mindspore_serving.worker.loop import StageLoop
from mindspore_serving.worker.remote import RemoteCaller

SERVABLES = Path(__file__).parent / "servables"
GROUPS = (1, 16, 64)  # requests that arrive in one turn of the event loop
BODY = json.dumps({"instances": {"x": [i + 0.5 for i in range(16)]}}).encode()
REQUEST = (
    b"POST /model/add_one:add_one HTTP/1.1\r\nHost: 127.0.0.1:1500\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"/{ms_grpc.SERVICE}/Predict"),
    (":authority", "127.0.0.1:5500"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.85.1"),
]


class Transport:
    """Takes answers and counts them."""

    def __init__(self) -> None:
        self.num_answers = 0

    def write(self, data: bytes) -> None:
        self.num_answers += data.startswith(b"HTTP/1.1 200") and b'"y":[1.5,' in data
        self.num_answers += data.count(RAW_ANSWER)

    def get_extra_info(self, *_: Any) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Wire:
    """In place of the socket to the worker: keeps the last frame."""

    def __init__(self) -> None:
        self._pair = socket.socketpair()
        self.sent = b""

    def setblocking(self, _: bool) -> None: ...
    def fileno(self) -> int:
        return self._pair[0].fileno()

    def send(self, frame: bytes) -> int:
        self.sent = bytes(frame)
        return len(frame)


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    """The application that the short way goes past."""


class Bench:
    """A servable with `size` connections."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seconds: dict[str, list[float]] = {}
        stream, _ = socket.socketpair()
        setup = Setup(str(SERVABLES), "add_one", 0, "none", None, True, None, "AES-GCM", False, {})
        worker = WorkerConnection(stream, NoArena(), NoArena())
        inbox = Inbox(worker, worker)
        remote = RemoteCaller(worker, inbox)
        host = load(setup, remote, worker.make_wakeable)
        self.loop = StageLoop(worker, inbox, remote, Executor(host.programs))
        self.wire = Wire()
        self.to_worker, self.to_master = message_decoder(ToWorker), message_decoder(ToMaster)
        self.dispatcher = Dispatcher()
        self.batches = self.dispatcher._batches
        launched = Launched(None, self.wire, NoArena(), NoArena())  # type: ignore[arg-type]
        self.link = Link(launched, "worker", None)  # type: ignore[arg-type]
        self.dispatcher.registry.add_worker(
            Deployment(str(SERVABLES), "add_one"), 1, host.method_reports(), self.link
        )
        self.transport = Transport()
        self.open()

    def open(self) -> None:
        """Open the connections."""
        path = FastPath(self.dispatcher, MsRest(max_body=1 << 20), Keys())
        self.http = HttpServer(Address("", "", 0), no_app, path)
        self.connections = []
        for _ in range(self.size):
            connection = HttpConnection(self.http.shared)
            connection.connection_made(self.transport)  # type: ignore[arg-type]
            self.connections.append(connection)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append((time.perf_counter() - start) / self.size)

    def prepare(self) -> None:
        """Make the next requests, if they differ."""

    def receive(self) -> None:
        """Let the master read the requests."""
        for connection in self.connections:
            connection.get_buffer(-1)[: len(REQUEST)] = REQUEST
            connection.buffer_updated(len(REQUEST))

    def flush(self) -> None:
        """Write what the end of a turn of the event loop would write."""

    def run(self) -> None:
        """One group of requests, from bytes to bytes."""
        self.prepare()
        with self.step("master: parse HTTP, route, queue"):
            self.receive()
        while self.link.parts or self.batches._waiting:
            with self.step("master: pick worker, build message"):
                self.batches.dispatch()
            (work,) = list(self.to_worker.feed(self.wire.sent))
            assert isinstance(work, Work)
            with self.step("worker: decode, check"):
                self.loop.handle(work)
            with self.step("worker: batch, run, encode"):
                executor = self.loop.executor
                while executor.has_work:
                    executor.run_next(time.monotonic())
                replies = self.loop.collect()
            with self.step("both: msgpack"):
                frame = encode(Done(replies))
                (done,) = list(self.to_master.feed(frame))
            with self.step("master: join, write HTTP"):
                self.link._handle(done)
                self.flush()


class GrpcBench(Bench):
    """A servable, and a connection of HTTP/2 with `size` calls at once."""

    def open(self) -> None:
        limits = ServerLimits()
        handler = ms_grpc.handler(self.dispatcher, CallGate(Keys(), limits, 1 << 20))
        server = Http2GrpcServer(Address("", "", 0), GrpcMethods([handler], 1 << 20), limits)
        self.connection = Http2Connection(server.shared)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.encoder, self.next_stream, self.requests = hpack.Encoder(), 1, b""
        grown = frame(FrameType.WINDOW_UPDATE, 0, 0, u32(MAX_WINDOW - DEFAULT_WINDOW))
        self.send(PREFACE + frame(FrameType.SETTINGS, 0, 0) + grown)

    def prepare(self) -> None:
        body, parts = grpc_frame(ms_request()), []
        for _ in range(self.size):
            block = self.encoder.encode(CALL)
            parts.append(frame(FrameType.HEADERS, Flag.END_HEADERS, self.next_stream, block))
            parts.append(frame(FrameType.DATA, Flag.END_STREAM, self.next_stream, body))
            self.next_stream += 2
        self.requests = b"".join(parts)

    def receive(self) -> None:
        self.send(self.requests)

    def send(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def flush(self) -> None:
        self.connection._sender.flush()


async def measure(kind: type[Bench], size: int, rounds: int) -> dict[str, float]:
    """Median microseconds per request of each step."""
    bench = kind(size)
    for _ in range(rounds):
        bench.run()
        await asyncio.sleep(0)
    assert bench.transport.num_answers == rounds * size, "wrong answers"
    return {name: statistics.median(times) * 1e6 for name, times in bench.seconds.items()}


KINDS = {"REST": Bench, "gRPC": GrpcBench}


def pass_on(stream: socket.socket, beyond: socket.socket | None) -> None:
    """Answer each message with itself, or with what comes back from `beyond`; never returns."""
    while message := stream.recv(4096):
        if beyond is not None:
            beyond.sendall(message)
            message = beyond.recv(4096)
        stream.sendall(message)
    os._exit(0)


def hops(count: int, rounds: int) -> float:
    """Median microseconds until a message came back from a chain of `count` other processes."""
    beyond, children = None, []
    for _ in range(count):
        near, far = socket.socketpair()
        child = os.fork()
        if child == 0:
            near.close()
            pass_on(far, beyond)
        far.close()
        if beyond is not None:
            beyond.close()
        beyond = near
        children.append(child)
    assert beyond is not None
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        beyond.sendall(REQUEST)
        beyond.recv(4096)
        times.append(time.perf_counter() - start)
    beyond.close()
    for child in reversed(children):
        os.waitpid(child, 0)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    passed = {count: hops(count, rounds) for count in (1, 2)}
    by_title = {}
    for title, kind in KINDS.items():
        columns = {size: uvloop.run(measure(kind, size, rounds)) for size in GROUPS}
        names = list(columns[GROUPS[0]])
        rows = [[name, *(f"{columns[size][name]:.1f}" for size in GROUPS)] for name in names]
        totals = [f"{sum(columns[size].values()):.1f}" for size in GROUPS]
        header = [f"{title}: microseconds", *(f"{size} at once" for size in GROUPS)]
        print_table(header, [*rows, ["sum", *totals]])
        by_title[title] = columns
    print(
        f"the kernel alone, {len(REQUEST)} bytes: {passed[1]:.0f} microseconds through one other "
        f"process and back, {passed[2]:.0f} through two"
    )
    print_json("request_cost", microseconds=by_title, hops=passed)


if __name__ == "__main__":
    main()
