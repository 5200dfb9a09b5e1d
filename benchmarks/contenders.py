"""Who is measured in serving_overhead, what each is sent, and how a right reply is told.

All of them add one to the same 16 float32 numbers, except the gRPC ceiling, which gives its bytes
back.
"""

import base64
import http.client
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import HERE, python_with

NUMBERS = [i + 0.5 for i in range(16)]
ANSWER = [x + 1 for x in NUMBERS]
RAW = struct.pack("<16f", *NUMBERS)
RAW_ANSWER = struct.pack("<16f", *ANSWER)


@dataclass(frozen=True, slots=True)
class Server:
    """A process: the script in servers/, its environment, and its command line's ports.

    `environment` is a row of REQUIREMENTS, or None for the one that this runs in.
    """

    name: str
    environment: str | None
    ports: int
    arguments: Callable[[list[int]], list[str]]

    def command(self, ports: list[int]) -> list[str]:
        place = self.environment
        python = sys.executable if place is None else python_with(place, REQUIREMENTS[place])
        return [python, *self.arguments(ports)]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way into a server: where to send what.  `port` is an index into the server's ports."""

    name: str
    server: str
    protocol: str  # "http" or "grpc"
    path: str
    body: bytes
    port: int = 0
    answer: bytes = RAW_ANSWER  # gRPC: what a right reply contains


def _script(name: str) -> Callable[[list[int]], list[str]]:
    return lambda ports: [str(HERE / "servers" / name), *map(str, ports)]


def ours(servable: str, *front_ends: str) -> Callable[[list[int]], list[str]]:
    """The arguments of our server with one of servables/; the ports: HTTP, gRPC."""
    return lambda ports: ["-m", "benchmarks.servers.ours", servable, *map(str, ports), *front_ends]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field; the values here are shorter than 128 bytes."""
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


def ms_request() -> bytes:
    """PredictRequest of the MSService for add_one.add_one with one instance."""
    float32 = bytes((2 << 3, 11))
    tensor = _field(1, _field(1, bytes([16]))) + float32 + _field(3, RAW)
    spec = _field(1, b"add_one") + _field(2, b"add_one")
    return _field(1, spec) + _field(2, _field(1, _field(1, b"x") + _field(2, tensor)))


def _v2_request() -> bytes:
    """ModelInferRequest of the Open Inference Protocol, with raw contents."""
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, bytes([1, 16]))
    return _field(1, b"add_one") + _field(3, b"1") + _field(5, tensor) + _field(7, RAW)


REQUIREMENTS = {
    "litserve": ("litserve==0.2.19", "numpy==2.4.6"),
    "mosec": ("mosec==0.9.8", "numpy==2.4.6"),
    "mlserver": ("mlserver==1.7.1", "uvloop==0.23.0"),
    "ceilings": (
        "uvicorn==0.54.0",
        "httptools==0.9.0",
        "uvloop==0.23.0",
        "granian==2.8.7",
        "grpcio==1.85.1",
        "msgspec==0.22.0",
    ),
}

SERVERS = {
    server.name: server
    for server in (
        Server("ours", None, 2, ours("add_one")),
        Server("ours front ends", None, 2, ours("add_one", "2")),
        Server("litserve", "litserve", 1, _script("litserve_add_one.py")),
        Server("mosec", "mosec", 1, _script("mosec_add_one.py")),
        Server("mlserver", "mlserver", 2, _script("mlserver_add_one.py")),
        Server("uvicorn", "ceilings", 1, _script("ceiling_asgi.py")),
        Server("granian", "ceilings", 1, _script("ceiling_rsgi.py")),
        Server("grpc.aio", "ceilings", 1, _script("ceiling_grpc.py")),
    )
}

_OURS = "/model/add_one:add_one"
_BODY = _json({"instances": {"x": NUMBERS}})
_B64 = {"b64": base64.b64encode(RAW).decode(), "type": "fp32", "shape": [16]}
_V2 = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": NUMBERS}

_V2_PATH, _V2_BODY = "/v2/models/add_one/infer", _json({"id": "1", "inputs": [_V2]})
_V2_CALL = "/inference.GRPCInferenceService/ModelInfer"

CONTENDERS = (
    Contender("ours JSON", "ours", "http", _OURS, _BODY),
    Contender("ours JSON b64", "ours", "http", _OURS, _json({"instances": {"x": _B64}})),
    Contender("ours V2 JSON", "ours", "http", _V2_PATH, _V2_BODY),
    Contender("LitServe", "litserve", "http", "/predict", _json({"x": NUMBERS})),
    Contender("mosec", "mosec", "http", "/inference", _json({"x": NUMBERS})),
    Contender(
        "MLServer V2 JSON",
        "mlserver",
        "http",
        _V2_PATH,
        _V2_BODY,
    ),
    Contender("ceiling uvicorn", "uvicorn", "http", "/", _BODY),
    Contender("ceiling granian RSGI", "granian", "http", "/", _BODY),
    Contender(
        "ours gRPC",
        "ours",
        "grpc",
        "/mindspore.serving.proto.MSService/Predict",
        ms_request(),
        port=1,
    ),
    Contender("ours V2 gRPC", "ours", "grpc", _V2_CALL, _v2_request(), port=1),
    Contender("ours JSON, two front ends", "ours front ends", "http", _OURS, _BODY),
    Contender(
        "ours gRPC, two front ends",
        "ours front ends",
        "grpc",
        "/mindspore.serving.proto.MSService/Predict",
        ms_request(),
        port=1,
    ),
    Contender(
        "MLServer V2 gRPC",
        "mlserver",
        "grpc",
        _V2_CALL,
        _v2_request(),
        port=1,
    ),
    Contender(
        "ceiling grpc.aio echo",
        "grpc.aio",
        "grpc",
        "/ceiling/Echo",
        ms_request(),
        answer=ms_request(),
    ),
)


def right_reply(contender: Contender, port: int) -> bytes | None:
    """The reply to one request if it is right, else None; OSError while nobody listens."""
    if contender.protocol == "grpc":
        reply = _call(contender, port)
        return reply if reply is not None and contender.answer in reply else None
    status, reply = _post(contender, port)
    return reply if status == 200 and _holds_answer(json.loads(reply)) else None


def _post(contender: Contender, port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", contender.path, contender.body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _call(contender: Contender, port: int) -> bytes | None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            call = channel.unary_unary(contender.path, None, None)
            reply: bytes = call(contender.body, timeout=5)
        except grpc.RpcError:
            return None
    return reply


def _holds_answer(value: Any) -> bool:
    """Whether the sixteen right numbers stand somewhere in a JSON value, as a list or as base64."""
    if isinstance(value, dict):
        if "b64" in value:
            return base64.b64decode(value["b64"]) == RAW_ANSWER
        return any(map(_holds_answer, value.values()))
    if isinstance(value, list):
        return value == ANSWER or any(map(_holds_answer, value))
    return False
