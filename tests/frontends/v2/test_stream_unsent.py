"""Responses of ModelStreamInfer that a client does not take: they have a limit of memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.v2 import service
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.shared_memory import RemoteSharedMemory
from mindspore_serving.frontends.v2.stream import MAX_CALLS, UnsentReplies
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire.v2 import outputs
from tests.frontends.http_serving import Inference
from tests.frontends.raw_grpc import RawGrpc
from tests.frontends.v2.test_own_infer import Models
from tests.ports import free_port
from tests.waiting import eventually

STREAM = f"/{service.SERVICE}/ModelStreamInfer"
MEGABYTE = 1 << 20
MOST = 6 * MEGABYTE


class AppState:
    def __init__(self, inference: Inference) -> None:
        self.inference = inference


class UnsentCounter(UnsentReplies):
    num_refused = 0

    def take(self, peer: str, num_bytes: int) -> None:
        try:
            super().take(peer, num_bytes)
        except Overloaded:
            self.num_refused += 1
            raise


class Served:
    def __init__(self, background: Any) -> None:
        self._background = background
        self.inference = Inference()
        self.inference.holds = True
        limits, models = ServerLimits(max_unsent_memory=MOST), Models()
        v2 = V2(AppState(self.inference), models, RemoteSharedMemory(), limits)  # type: ignore[arg-type]
        self.unsent = UnsentCounter(MOST)
        gate = CallGate(Keys(()), limits, MOST)
        handler = service.handler(v2, gate, self.unsent)
        port = free_port()
        address = Address(f"127.0.0.1:{port}", "127.0.0.1", port)
        methods = GrpcMethods([handler], MOST, [gate.close])
        self.server = Http2GrpcServer(address, methods, limits)
        background.run(self.server.start(None))
        self.client = RawGrpc(port)

    def answer(self, number: int, size: int) -> None:
        instance = outputs.encode_raw({"y": np.zeros(size, np.int8)})
        data = instance if isinstance(instance, bytes) else instance.join()
        self.inference.answer(self.inference.wait_for(number), Reply([data]))

    def close(self) -> None:
        self.client.stream.close()
        self._background.run(self.server.stop(0.0))


@pytest.fixture
def served(background: Any) -> Iterator[Served]:
    found = Served(background)
    yield found
    found.close()


def ask(client: RawGrpc, number: int, name: str, *, is_last: bool = False) -> None:
    request = pb.ModelInferRequest(model_name="toy", id=name, raw_input_contents=[b"\0" * 4])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    body = request.SerializeToString()
    client.begin(number, len(body))
    client.send(number, body, is_last=is_last)


def test_a_response_without_room_is_an_error_in_order(served: Served) -> None:
    client = served.client
    client.take_nothing()
    number = client.call(STREAM)
    for name in "abc":
        ask(client, number, name, is_last=name == "c")
    served.answer(1, MEGABYTE)
    eventually(lambda: served.unsent.num_bytes > MEGABYTE)
    served.answer(2, MEGABYTE)
    eventually(lambda: served.unsent.num_bytes > 2 * MEGABYTE)
    served.answer(3, 3 * MEGABYTE)
    eventually(lambda: served.unsent.num_refused == 1)
    client.take(number)
    found = [pb.ModelStreamInferResponse.FromString(one) for one in client.messages(number)]
    assert [one.infer_response.id for one in found] == ["a", "b", "c"]
    assert ["max_unsent_memory" in one.error_message for one in found] == [False, False, True]
    assert [len(one.infer_response.raw_output_contents) for one in found] == [1, 1, 0]
    eventually(lambda: served.unsent.num_bytes == 0)


def test_queued_responses_are_sent_despite_later_large_responses(served: Served) -> None:
    client = served.client
    client.take_nothing()
    number = client.call(STREAM)
    for name in "abc":
        ask(client, number, name, is_last=name == "c")
    for index, size in enumerate((MEGABYTE, MEGABYTE // 2, MEGABYTE * 17 // 10)):
        before = served.unsent.num_bytes
        served.answer(index + 1, size)
        eventually(lambda before=before, size=size: served.unsent.num_bytes >= before + size)
    client.take(number)
    found = [pb.ModelStreamInferResponse.FromString(one) for one in client.messages(number)]
    assert [one.infer_response.id for one in found] == ["a", "b", "c"]
    assert [one.error_message for one in found] == ["", "", ""]


def test_those_of_a_client_that_has_left_are_let_go(served: Served) -> None:
    client = served.client
    client.take_nothing()
    number = client.call(STREAM)
    for index, name in enumerate("ab"):
        ask(client, number, name)
        served.answer(index + 1, MEGABYTE)
        eventually(lambda index=index: served.unsent.num_bytes > (index + 1) * MEGABYTE)
    client.stream.close()
    eventually(lambda: served.unsent.num_bytes == 0)


def test_streams_of_a_connection_leave_room_for_other_connections(served: Served) -> None:
    hog = served.client
    numbers = [hog.call(STREAM) for _ in range(MAX_CALLS)]
    for number in numbers[3 * MAX_CALLS // 4 :]:
        hog.wait_until_closed(number)  # for which there is no room
    assert len(hog.closed) < MAX_CALLS // 2
    other = RawGrpc(hog.stream.getpeername()[1])
    number = other.call(STREAM)
    ask(other, number, "a", is_last=True)
    served.answer(1, 10)
    other.wait_until_closed(number)
    assert len(other.messages(number)) == 1
    other.stream.close()
