"""Memory that an idle connection keeps: of HTTP/1.1, and of HTTP/2 after a call of gRPC.

`python -m benchmarks.idle_connections [--connections N] [--rounds N]`

A server of one small model gets N connections by each protocol, each answers one request, and all
stay open.  Shown is what the memory of the server's master process grows by, for each: what is
resident, and what is proportional (pages that several processes share are counted once).  Memory
of the kernel for sockets is not in it.  Client and server each need a descriptor for a connection.
"""

import argparse
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import hpack

from benchmarks.contenders import CONTENDERS, right_reply
from benchmarks.load import frame
from benchmarks.processes import HERE, free_ports, running
from benchmarks.report import print_json, print_table
from mindspore_serving.frontends.http2.frames import PREFACE, Flag, FrameType
from mindspore_serving.frontends.http2.frames import frame as http2_frame

NUM_ADDRESSES = 8  # of clients: an address has ports for 28,000 connections, and a limit
NUM_FIRST = 200  # connections before the memory is read for the first time


def http1_request(path: str, body: bytes) -> bytes:
    """Return a request by HTTP/1.1."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def grpc_call(path: str, body: bytes) -> bytes:
    """Return the beginning of a connection of HTTP/2, with a call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "127.0.0.1",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "benchmark",
    }
    block = hpack.Encoder().encode(fields.items())
    settings = http2_frame(FrameType.SETTINGS, 0, 0)
    head = http2_frame(FrameType.HEADERS, Flag.END_HEADERS, 1, block)
    data = http2_frame(FrameType.DATA, Flag.END_STREAM, 1, frame(body))
    return PREFACE + settings + head + data


REQUESTS: dict[str, tuple[str, Callable[[str, bytes], bytes], bytes]] = {
    # the contender whose request it is, how that is sent, and with what its answer ends
    "HTTP/1.1": ("ours JSON", http1_request, b"]}]}"),
    "HTTP/2, gRPC": ("ours gRPC", grpc_call, b"grpc-status\x010"),
}


def connect(stack: ExitStack, port: int, number: int, request: bytes, end: bytes) -> None:
    """Open a connection that stays open, and send its request."""
    address = (f"127.0.0.{2 + number % NUM_ADDRESSES}", 0)
    connection = socket.create_connection(("127.0.0.1", port), 30, source_address=address)
    stack.enter_context(connection)
    connection.sendall(request)
    answer = b""
    while not answer.endswith(end):
        part = connection.recv(1 << 16)
        if not part:
            raise OSError(f"connection {number} was closed after {answer[-200:]!r}")
        answer += part


def memory_of(process: int) -> dict[str, int]:
    """Return bytes by kind, resident (Rss) and proportional (Pss)."""
    sizes = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            sizes[name] = int(rest.split()[0]) << 10
    return sizes


def children() -> list[int]:
    path = Path("/proc/self/task").glob("*/children")
    return [int(child) for each in path for child in each.read_text().split()]


def measure(protocol: str, count: int) -> dict[str, float]:
    """Return bytes for each connection, by kind of memory."""
    name, write, end = REQUESTS[protocol]
    contender = next(each for each in CONTENDERS if each.name == name)
    request = write(contender.path, contender.body)
    port, grpc_port = free_ports(2)
    limits = [f"max_connections={count}", f"max_connections_per_address={count}"]
    command = [sys.executable, "-m", "mindspore_serving", "serve", str(HERE / "servables/add_one")]
    command += ["--http-port", str(port), "--grpc-port", str(grpc_port)]
    command += [f"--limit={limit}" for limit in limits]
    ports = [port, grpc_port]

    def is_ready() -> bool:
        return right_reply(contender, ports[contender.port]) is not None

    with ExitStack() as stack, running("idle_connections", command, is_ready):
        (master,) = children()
        for number in range(NUM_FIRST):
            connect(stack, port, number, request, end)
        before = memory_of(master)
        for number in range(NUM_FIRST, count):
            connect(stack, port, number, request, end)
        after = memory_of(master)
    return {kind: (after[kind] - size) / (count - NUM_FIRST) for kind, size in before.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_connections")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = arguments.connections
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count  # a server keeps half of its descriptors for other files
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(f"{count} connections need {needed} descriptors, allowed are {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    results: dict[str, list[dict[str, float]]] = {protocol: [] for protocol in REQUESTS}
    for _ in range(arguments.rounds):
        for protocol, sizes in results.items():
            sizes.append(measure(protocol, count))
    medians = {
        protocol: {kind: median(size[kind] for size in sizes) for kind in sizes[0]}
        for protocol, sizes in results.items()
    }
    rows = [
        [protocol, f"{each['Rss'] / 1e3:.2f}", f"{each['Pss'] / 1e3:.2f}"]
        for protocol, each in medians.items()
    ]
    print_table(["kB for each connection", "resident", "proportional"], rows)
    print_json("idle_connections", connections=count, rounds=arguments.rounds, results=medians)


if __name__ == "__main__":
    main()
