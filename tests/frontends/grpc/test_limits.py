"""What clients can take of a gRPC server: messages without a key, memory, time, connections."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.frontends.http_serving import Inference
from tests.frontends.raw_grpc import RawGrpc
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

KEY = "a-key-that-is-long-enough"
PREDICT = "/mindspore.serving.proto.MSService/Predict"
PREDICT_STREAM = f"{PREDICT}Stream"
MEGABYTE = 1 << 20
LARGEST = 4 * MEGABYTE


def message(size: int = 0) -> bytes:
    request = pb.PredictRequest()
    request.servable_spec.name = "add"
    request.servable_spec.method_name = "m"
    request.instances.add().items["x"].bytes_val.append(b"x" * size)
    return bytes(request.SerializeToString())


class Client(RawGrpc):
    def begin_to_send(self, size: int) -> int:
        """A call of whose message a part is sent: more than the server takes before it reads."""
        number = self.call(PREDICT)
        self.begin(number, size)
        self.send(number, b"x" * MEGABYTE)
        return number


class Served:
    """A running gRPC server over an inference that the test answers."""

    def __init__(self, background, keys, limits, path="") -> None:
        """At the unix socket `path`, if that is given."""
        self.background = background
        self.inference = Inference()
        self.port, self.path = free_port(), path
        address = Address(f"127.0.0.1:{self.port}", "127.0.0.1", self.port)
        if path:
            address = Address(f"unix:{path}", path=path)
        self.address = address.text
        self.gate = CallGate(Keys(keys), limits, LARGEST)
        handler = ms_grpc.handler(self.inference, self.gate)
        methods = GrpcMethods([handler], LARGEST, [self.gate.close])
        self.server = Http2GrpcServer(address, methods, limits)
        background.run(self.server.start(None))
        self.channels = [self._channel()]
        self._raw: list[Client] = []

    def _channel(self):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        return grpc.insecure_channel(self.address, options)

    def raw(self, source: str = "127.0.0.1") -> Client:
        self._raw.append(Client(self.port, source, self.path))
        return self._raw[-1]

    def call(self, body: bytes, *metadata, is_new: bool = False):
        """A call under way, if `is_new` by a connection of its own."""
        if is_new:
            self.channels.append(self._channel())
        method = self.channels[-1].unary_unary(PREDICT)
        return method.future(body, timeout=PATIENCE, metadata=metadata)

    def close(self):
        for channel in self.channels:
            channel.close()
        for client in self._raw:
            client.stream.close()
        self.background.run(self.server.stop(0))


@contextmanager
def serving(background, keys=(), path="", **limits) -> Iterator[Served]:
    made = Served(background, keys, ServerLimits(**limits), path)
    try:
        yield made
    finally:
        made.close()


def status_of(call) -> str:
    return call.code().name


def test_messages_of_a_caller_without_a_key_are_not_read(background):
    with serving(background, [KEY]) as served:
        client = served.raw()
        number = client.call(PREDICT)
        client.wait_until_closed(number)  # before any of the message came
        assert status_of(served.call(message())) == "UNAUTHENTICATED"
        good = served.call(message(), ("authorization", f"Bearer {KEY}"))
        assert status_of(good) == "OK"
        assert len(served.inference.asked) == 1


def test_a_path_that_is_not_utf8_ends_no_call_and_not_the_service(background):
    with serving(background) as served:
        served.inference.holds = True
        running = served.call(message())
        asked = served.inference.wait_for(1)
        served.inference.holds = False
        bad = served.raw()
        bad.wait_until_closed(bad.call("/\udc90"))
        assert status_of(served.call(message(), is_new=True)) == "OK"
        asked.reply(Reply([message()]))
        assert status_of(running) == "OK"


def test_incomplete_messages_stay_within_the_memory_of_their_connection(background):
    with serving(background, max_body_memory=4 * LARGEST) as served:
        client = served.raw()
        numbers = [client.begin_to_send(LARGEST) for _ in range(16)]
        client.wait_until_closed(numbers[-1])
        assert client.closed == set(numbers[9:])  # 9 sixteenths of 16 MB are for a connection
        assert status_of(served.call(message(2 * MEGABYTE))) == "OK"
        client.stream.close()
        eventually(lambda: served.server.shared.memory.used == 0)


def test_a_call_that_waits_for_memory_is_run_when_there_is_some(background):
    with serving(background, max_body_memory=LARGEST) as served:
        client = served.raw()
        number, body = client.call(PREDICT), message(LARGEST // 2)
        client.begin(number, len(body))
        client.send(number, body[:-1])
        waiting = [served.call(message()) for _ in range(8)]
        client.send(number, body[-1:], is_last=True)
        assert [status_of(call) for call in waiting] == ["OK"] * 8
        client.wait_until_closed(number)
        assert len(served.inference.asked) == 9


def test_unanswered_messages_count_in_the_memory_limit(background):
    with serving(background, max_body_memory=LARGEST + MEGABYTE) as served:
        served.inference.holds = True
        first = served.call(message(2 * MEGABYTE))
        asked = served.inference.wait_for(1)
        refused = served.call(message(3 * MEGABYTE))
        assert status_of(refused) == "RESOURCE_EXHAUSTED"
        assert ("retry-after", "1") in [tuple(pair) for pair in refused.trailing_metadata()]
        served.inference.answer(asked, Reply([b""]))
        assert status_of(first) == "OK"
        served.inference.holds = False
        assert status_of(served.call(message(3 * MEGABYTE))) == "OK"


def ask(client: Client, size: int, path: str = PREDICT) -> int:
    """A call that is answered with as much as it asks with."""
    number, body = client.call(path), message(size)
    client.begin(number, len(body))
    client.send(number, body, is_last=True)
    return number


@pytest.mark.parametrize("path", [PREDICT, PREDICT_STREAM])
def test_clients_that_take_no_answers_lose_their_connection(background, path):
    with serving(background, max_unsent_memory=4 * MEGABYTE) as served:
        silent, reading = served.raw(), served.raw("127.0.0.2")
        silent.take_nothing()
        for _ in range(3):
            ask(silent, 2 * MEGABYTE, path)
        reading.take_nothing()
        number = ask(reading, MEGABYTE, path)
        eventually(lambda: is_closed(silent))
        reading.take(number)
        assert len(reading.messages(number)[0]) > MEGABYTE


def test_a_message_that_comes_in_drops_ends_in_the_end(background):
    with serving(background, body_timeout=0.2) as served:
        client = served.raw()
        number = client.begin_to_send(LARGEST)
        client.wait_until_closed(number)
        assert served.inference.asked == []


def test_a_call_without_a_message_is_refused(background):
    with serving(background) as served:
        method = served.channels[0].stream_unary(PREDICT)
        with pytest.raises(grpc.RpcError) as refused:
            method(iter(()), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_ends_at_the_deadline_of_the_server_or_the_client(background):
    with serving(background, request_timeout=50) as served:
        for own, expected in ((None, 50), (100, 50), (30, 30)):
            served.channels[0].unary_unary(PREDICT)(message(), timeout=own)
            timeout = served.inference.asked[-1].request.timeout
            assert expected - 19 < timeout < expected + 1


def test_a_client_that_disconnects_while_waiting_leaves_no_state(background):
    with serving(background, max_body_memory=LARGEST) as served:
        client = served.raw()
        client.begin_to_send(LARGEST)
        for _ in range(4):
            served.call(message()).cancel()
        client.stream.close()
        eventually(lambda: status_of(served.call(message())) == "OK")


def test_a_connection_over_the_limit_is_closed(background):
    with serving(background, max_connections=2) as served:
        first = served.call(message(), is_new=True)
        second = served.call(message(), is_new=True)
        assert (status_of(first), status_of(second)) == ("OK", "OK")
        assert status_of(served.call(message(), is_new=True)) == "UNAVAILABLE"
        served.channels[1].close()
        eventually(lambda: status_of(served.call(message(), is_new=True)) == "OK")


def test_a_memory_limit_below_the_message_size_is_refused():
    from mindspore_serving import server

    with pytest.raises(RuntimeError, match="max_body_memory is 1048576, less than one message"):
        server.start_grpc_server(
            f"127.0.0.1:{free_port()}", 2, limits=server.ServerLimits(max_body_memory=MEGABYTE)
        )


def test_a_call_with_an_incomplete_message_is_refused_at_the_stop(background):
    with serving(background) as served:
        client = served.raw()
        number = client.begin_to_send(LARGEST)
        with ThreadPoolExecutor(1) as thread:
            stopping = thread.submit(background.run, served.server.stop(grace=600))
            client.wait_until_closed(number)
            client.stream.close()
            stopping.result(PATIENCE)


def is_closed(client: RawGrpc) -> bool:
    client.stream.setblocking(False)
    try:
        while client.stream.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True
