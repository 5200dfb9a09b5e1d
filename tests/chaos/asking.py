"""Requests of every protocol to a server of the suite, and what became of each.

An answer is told by one number whatever the protocol: an HTTP status, or what stands for it.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import grpc

from mindspore_serving.client.caller import Stub
from mindspore_serving.client.messages import to_request
from mindspore_serving.proto.ms_service_pb2 import PredictReply
from tests.chaos.server import Server

Code: TypeAlias = "int | str"
CLOSED = "closed"  # the connection ended without an answer
CUT = "cut"  # a stream ended with an error, or in the middle
HUNG = "hung"  # no answer within the bound

# error_code of a classic reply -> the status that HTTP has for it
_STATUS = {1: 500, 2: 400, 3: 500, 4: 503, 5: 503}
_JSON = {"Content-Type": "application/json"}
_STATUS_OF_RPC = {
    grpc.StatusCode.UNAVAILABLE: CLOSED,
    grpc.StatusCode.CANCELLED: CLOSED,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class Flight:
    """One request under way in a thread; `code` is None until it has ended.

    `ask(flight)` returns its code; it may call `flight.arrived()` when something has come, and sets
    `flight.cancel` to what ends it from another thread.
    """

    def __init__(self, ask: "Callable[[Flight], Code]") -> None:
        self.began = time.monotonic()
        self.ended = 0.0
        self.code: Code | None = None
        self.cancel: Callable[[], object] = lambda: None
        self.has_begun = threading.Event()
        self.answer: Any = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for its end, but no longer."""
        self._thread.join(seconds)

    def wait(self, until: float) -> Code:
        """Its code; HUNG, and given up, if it has none at the time `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self.code is not None:
            return self.code
        self.ended, self.code = time.monotonic(), HUNG
        with suppress(Exception):
            self.cancel()
        return HUNG

    def _run(self) -> None:
        try:
            code = self._ask(self)
        except (OSError, http.client.HTTPException):
            code = CUT if self.has_begun.is_set() else CLOSED
        if self.code is None:
            self.ended, self.code = time.monotonic(), code


Ask: TypeAlias = "Callable[[Flight], Code]"


def post(server: Server, path: str, body: Any, headers: dict[str, str] | None = None) -> Ask:
    """POST `body`, as JSON unless it is bytes; `answer` becomes the bytes that come back."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def ask(flight: Flight) -> Code:
        connection = http.client.HTTPConnection("127.0.0.1", server.http)
        connection.connect()
        stream = connection.sock
        flight.cancel = lambda: stream.shutdown(socket.SHUT_RDWR)
        try:
            connection.request("POST", path, data, {**_JSON, **server.headers, **(headers or {})})
            reply = connection.getresponse()
            flight.answer = b""
            while piece := reply.read1(1 << 16):
                flight.answer += piece
                flight.has_begun.set()
            is_cut = reply.status == 200 and _ends_badly(reply, flight.answer)
            return CUT if is_cut else reply.status
        finally:
            connection.close()

    return ask


def _ends_badly(reply: http.client.HTTPResponse, answer: bytes) -> bool:
    """Whether a stream of events ends with an error."""
    if "event-stream" not in (reply.headers.get("content-type") or ""):
        return False
    last = answer[-2000:].strip().rsplit(b"\n\n", 2)
    return any(b'"error' in event for event in last)


def classic(server: Server, method: str, x: Any, servable: str = "toy") -> Ask:
    """By the classic RESTful protocol."""
    return post(server, f"/model/{servable}:{method}", {"instances": [{"x": x}]})


def classic_grpc(server: Server, method: str, x: Any, servable: str = "toy") -> Ask:
    def ask(flight: Flight) -> Code:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            request = to_request(servable, method, 0, {"x": x})
            call = Stub(channel).Predict.future(request, metadata=_metadata(server))
            flight.cancel = call.cancel
            try:
                flight.answer = call.result()
            except grpc.RpcError as error:
                return code_of_rpc(error)
            return _code_of(flight.answer)

    return ask


def classic_grpc_stream(server: Server, method: str, x: Any) -> Ask:
    def ask(flight: Flight) -> Code:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            request = to_request("toy", method, 0, {"x": x})
            call = Stub(channel).PredictStream(request, metadata=_metadata(server))
            flight.cancel = call.cancel
            codes: list[Code] = []
            try:
                for reply in call:
                    codes.append(_code_of(reply))
                    flight.has_begun.set()
            except grpc.RpcError as error:
                return CUT if codes else code_of_rpc(error)
            bad = [code for code in codes if code != 200]
            return 200 if not bad else CUT if len(codes) > 1 else bad[0]

    return ask


def completion(server: Server, count: int, **more: Any) -> Ask:
    body = {"prompt": "The sea is", "max_tokens": count, "ignore_eos": True, "temperature": 0}
    return post(server, "/v1/completions", {**body, **more})


def chat(server: Server, count: int, **more: Any) -> Ask:
    messages = [{"role": "user", "content": "What is the sea?"}]
    body = {"messages": messages, "max_tokens": count, "ignore_eos": True}
    return post(server, "/v1/chat/completions", {**body, **more})


def code_of_rpc(error: grpc.RpcError) -> Code:
    return _STATUS_OF_RPC.get(error.code(), str(error.code()))


def _metadata(server: Server) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in server.headers.items())


def _code_of(reply: PredictReply) -> Code:
    return _STATUS.get(reply.error_msg[0].error_code, 500) if reply.error_msg else 200
