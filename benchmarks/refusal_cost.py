"""What a refusal costs the server, in microseconds of its processor time.

    python -m benchmarks.refusal_cost [--rounds 3] [--seconds 4] [--model DIRECTORY]
                                      [--against CHECKOUT]

Servers that may have few requests are asked for more by 16 clients at once, who keep their
connections.  The time of the server's first process is divided by the number of refusals.  Their
clients' time is not in it, nor that of workers; the few answers are.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import uvloop

from benchmarks.overload_clients import REFUSED, Clients
from benchmarks.processes import HERE, ROOT, free_ports, running
from benchmarks.processor_time import master_time
from benchmarks.report import print_json, print_table

CLIENTS = 16
NAME = "slow_add_one"
INTEGER = 4  # of MSService's data types, int32


@dataclass(frozen=True, slots=True)
class Case:
    """A request of one protocol; over gRPC the path is that of the call."""

    label: str
    path: str
    body: bytes
    is_grpc: bool = False


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field; the values here are shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


def classic_cases() -> list[Case]:
    raw = bytes(4)
    tensor = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    spec = _field(1, NAME.encode()) + _field(2, b"add_one")
    value = _field(1, _field(1, bytes([1]))) + bytes([2 << 3, INTEGER]) + _field(3, raw)
    predict = _field(1, spec) + _field(2, _field(1, _field(1, b"x") + _field(2, value)))
    shape = _field(1, b"x") + _field(2, b"INT32") + _field(3, bytes([1, 1]))
    infer = _field(1, NAME.encode()) + _field(5, shape) + _field(7, raw)
    return [
        Case("classic", f"/model/{NAME}:add_one", _json({"instances": [{"x": 1}]})),
        Case("v2", f"/v2/models/{NAME}/infer", _json({"inputs": [tensor]})),
        Case("classic, gRPC", "/mindspore.serving.proto.MSService/Predict", predict, is_grpc=True),
        Case("v2, gRPC", "/inference.GRPCInferenceService/ModelInfer", infer, is_grpc=True),
    ]


def language_cases(model: str) -> list[Case]:
    common = {"model": model, "max_tokens": 384, "ignore_eos": True}
    chat = {**common, "messages": [{"role": "user", "content": "Once upon a time"}]}
    text = {**common, "prompt": "Once upon a time"}
    return [
        Case("completions", "/v1/completions", _json(text)),
        Case("chat", "/v1/chat/completions", _json(chat)),
        Case("chat, streams", "/v1/chat/completions", _json({**chat, "stream": True})),
        Case("messages", "/v1/messages", _json(chat)),
        Case("ollama", "/api/chat", _json({**chat, "stream": False})),
    ]


@contextmanager
def server(directory: Path, checkout: Path, options: list[str]) -> Iterator[tuple[int, int]]:
    """The ports of a new one, of HTTP and gRPC."""
    ports = free_ports(2)
    command = ["env", "-C", str(checkout), f"PYTHONPATH={checkout}", sys.executable]
    command += ["-m", "mindspore_serving", "serve", str(directory), "--http-status-codes"]
    command += ["--http-port", str(ports[0]), "--grpc-port", str(ports[1]), *options]

    async def is_ready() -> bool:
        head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        return (await Clients(ports[0], head, 5.0).closed_loop(1, 0.1)).statuses[200] > 0

    with running("refusal_cost", command, lambda: uvloop.run(is_ready())):
        yield ports[0], ports[1]


async def refused_http(case: Case, port: int, seconds: float) -> int:
    head = (
        f"POST {case.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(case.body)}\r\n\r\n"
    )
    clients = Clients(port, head.encode() + case.body, 60.0)
    outcomes = await clients.closed_loop(CLIENTS, seconds)
    return sum(outcomes.statuses[status] for status in REFUSED)


async def refused_grpc(case: Case, port: int, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(case.path, None, None)

        async def client() -> None:
            nonlocal count
            while time.perf_counter() < end:
                with suppress(grpc.aio.AioRpcError):  # MSService refuses in its answer
                    await call(case.body, timeout=60)
                count += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return count


def measure(case: Case, ports: tuple[int, int], seconds: float) -> float:
    """Microseconds for each refusal."""
    refused = refused_grpc if case.is_grpc else refused_http
    uvloop.run(refused(case, ports[case.is_grpc], 1.0))
    before = master_time()
    count = uvloop.run(refused(case, ports[case.is_grpc], seconds))
    return 1e6 * (master_time() - before) / max(1, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each case")
    parser.add_argument("--model", type=Path, help="directory of a language model")
    parser.add_argument("--against", type=Path, help="another checkout, in turns with this one")
    options = parser.parse_args()
    place = HERE / "servables" / NAME
    plans = [(place, ["--max-enqueued-requests", "2"], classic_cases())]
    if options.model is not None:
        few = ["--llm-option", "max_num_seqs=1", "--llm-option", "max_num_waiting=1"]
        plans.append((options.model.absolute(), few, language_cases(options.model.name)))
    checkouts = [ROOT, *([options.against.absolute()] if options.against else [])]
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for directory, few, cases in plans:
            for checkout in checkouts:
                with server(directory, checkout, few) as ports:
                    for case in cases:
                        costs = found.setdefault(case.label, {}).setdefault(checkout.name, [])
                        costs.append(measure(case, ports, options.seconds))
    names = [one.name for one in checkouts]
    print_table(
        ["microseconds", *names],
        [[label, *(f"{median(row[name]):.0f}" for name in names)] for label, row in found.items()],
    )
    print_json("refusal_cost", microseconds=found)


if __name__ == "__main__":
    main()
