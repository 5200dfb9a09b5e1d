"""What clients can take of a gRPC server: messages without a key, memory, time, connections."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.frontends import message_reader
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.server import GrpcServer
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
        self.server = GrpcServer(address, [handler], limits, [self.gate.close])
        background.run(self.server.start(LARGEST, None))
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
        served.raw().call("/\udc90")
        eventually(lambda: served.server.num_restarts == 1)
        eventually(lambda: status_of(served.call(message(), is_new=True)) == "OK")
        asked.reply(Reply([message()]))
        assert status_of(running) == "OK"


def test_slow_messages_stay_within_the_memory_of_their_connection(background, monkeypatch):
    monkeypatch.setattr(message_reader, "QUICK", 0.05)
    with serving(background, max_body_memory=4 * LARGEST) as served:
        client = served.raw()
        numbers = [client.begin_to_send(LARGEST) for _ in range(5)]
        for number in numbers[2:]:
            client.wait_until_closed(number)
        assert client.closed == set(numbers[2:])
        assert served.gate.reader.num_counted == 2
        assert status_of(served.call(message(LARGEST - 100))) == "OK"
        client.stream.close()
        eventually(lambda: served.gate.reader.num_counted == 0)


def test_unread_data_stays_with_the_client_also_with_a_fast_client(background):
    with serving(background) as served:
        client, body = served.raw(), message(3 * MEGABYTE)
        for _ in range(8):
            number = client.call(PREDICT)
            client.begin(number, len(body))
            client.send(number, body, is_last=True)
            client.wait_until_closed(number)
        assert client.initial_window < 1 << 16


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


def test_answers_that_are_not_taken_have_a_limit_of_memory(background):
    with serving(background, max_unsent_memory=4 * MEGABYTE) as served:
        client, unsent = served.raw(), served.server.unsent
        client.take_nothing()
        first, second = ask(client, MEGABYTE), ask(client, MEGABYTE // 2)
        eventually(lambda: unsent.num_bytes > 1.5 * MEGABYTE)
        refused = ask(client, 2 * MEGABYTE)
        client.wait_until_closed(refused)
        assert client.closed == {refused}
        assert status_of(served.call(message(MEGABYTE))) == "OK"  # by another connection
        client.take(first)
        client.take(second)
        eventually(lambda: unsent.num_bytes == 0)
        client.take(ask(client, 2 * MEGABYTE))


def test_answers_of_clients_that_have_left_need_no_memory(background):
    with serving(background, max_unsent_memory=MEGABYTE) as served:
        client, unsent = served.raw(), served.server.unsent
        client.take_nothing()
        ask(client, 2 * MEGABYTE)  # alone, so it may be as large
        eventually(lambda: unsent.num_bytes > 2 * MEGABYTE)
        refused = served.call(message(MEGABYTE))
        assert status_of(refused) == "RESOURCE_EXHAUSTED"
        assert "max_unsent_memory" in refused.details()
        assert status_of(served.call(message())) == "OK"  # small
        client.stream.close()
        eventually(lambda: status_of(served.call(message(MEGABYTE))) == "OK")


def test_messages_of_streams_that_are_not_taken_count_until_they_are(background):
    with serving(background, max_unsent_memory=4 * MEGABYTE) as served:
        client, unsent = served.raw(), served.server.unsent
        served.inference.holds = True
        client.take_nothing()
        first, second = (ask(client, 0, PREDICT_STREAM) for _ in range(2))
        asked, other = served.inference.wait_for(2), served.inference.asked[0]
        served.inference.answer(other, Reply([message(2 * MEGABYTE)], is_last=False))
        eventually(lambda: unsent.num_bytes > 2 * MEGABYTE)
        served.inference.answer(asked, Reply([message(MEGABYTE)], is_last=False))
        client.wait_until_closed(max(first, second))  # for whose message there is no room
        served.inference.answer(other, Reply([]))
        client.take(min(first, second))
        eventually(lambda: unsent.num_bytes == 0)


@pytest.mark.parametrize(
    ("size", "slow", "status"),
    [
        (MEGABYTE, 600.0, "OK"),  # of one that has less
        (LARGEST, 600.0, "RESOURCE_EXHAUSTED"),  # that has as much
        (LARGEST, 0.0, "OK"),
    ],
)
def test_a_slow_message_gives_way_to_a_complete_message(
    background, monkeypatch, size, slow, status
):
    monkeypatch.setattr(message_reader, "QUICK", 0.05)
    monkeypatch.setattr("mindspore_serving.frontends.grpc.calls.SLOW", slow)
    with serving(background, max_body_memory=LARGEST) as served:
        client = served.raw()
        number = client.begin_to_send(LARGEST)
        eventually(lambda: served.gate.reader.num_counted == 1)
        body = message(2 * size - len(message(size)))  # of that size
        served.inference.holds = True
        call = served.call(body)
        if status == "OK":
            served.inference.answer(served.inference.wait_for(1), Reply([b""]))
        assert status_of(call) == status
        if status == "OK":
            client.wait_until_closed(number)


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
