"""The cases of gRPC's interoperation tests, by name, with grpcio as the client."""

import queue
from contextlib import closing

import grpc
import pytest

from tests.frontends.grpc.interop.service import ECHOED, ECHOED_BIN, SERVICE, Interop, kind
from tests.waiting import PATIENCE, eventually

SIZES = (31415, 9, 2653, 58979)
REQUEST_SIZES = (27182, 8, 1828, 45904)
TEXT = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


@pytest.fixture(scope="module")
def served(background):
    with closing(Interop(background)) as made:
        yield made


@pytest.fixture(scope="module")
def stub(served):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(served.address, options) as channel:
        yield Stub(channel)


class Stub:
    """The methods of a service, as functions of grpcio."""

    def __init__(self, channel):
        self.channel = channel

    def coders(self, request, response):
        return kind(request).SerializeToString, kind(response).FromString

    def unary(self, name="UnaryCall", service=SERVICE, kinds=("SimpleRequest", "SimpleResponse")):
        return self.channel.unary_unary(f"/{service}/{name}", *self.coders(*kinds))

    def input(self):
        kinds = self.coders("StreamingInputCallRequest", "StreamingInputCallResponse")
        return self.channel.stream_unary(f"/{SERVICE}/StreamingInputCall", *kinds)

    @property
    def output_coders(self):
        return self.coders("StreamingOutputCallRequest", "StreamingOutputCallResponse")

    def output(self):
        return self.channel.unary_stream(f"/{SERVICE}/StreamingOutputCall", *self.output_coders)

    def duplex(self):
        return self.channel.stream_stream(f"/{SERVICE}/FullDuplexCall", *self.output_coders)


def empty_call(stub, name="EmptyCall", service=SERVICE):
    return stub.unary(name, service, ("Empty", "Empty"))


def output_request(size=0, sent=0, **fields):
    parameters = [{"size": size, **fields}]
    return kind("StreamingOutputCallRequest")(
        response_parameters=parameters, payload={"body": bytes(sent)}
    )


class Requests:
    """The requests of a stream, each sent when the test says so."""

    def __init__(self):
        self._queue = queue.Queue()

    def send(self, request):
        self._queue.put(request)

    def end(self):
        self._queue.put(None)

    def __iter__(self):
        return iter(self._queue.get, None)


def test_empty_unary(stub):
    assert empty_call(stub)(kind("Empty")(), timeout=PATIENCE) == kind("Empty")()


def test_large_unary(stub):
    request = kind("SimpleRequest")(response_size=314159, payload={"body": bytes(271828)})
    response = stub.unary()(request, timeout=PATIENCE)
    assert response.payload.body == bytes(314159)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_client_compressed_unary(stub, compression):
    request = kind("SimpleRequest")(
        expect_compressed={"value": True}, response_size=314159, payload={"body": bytes(271828)}
    )
    response = stub.unary()(request, timeout=PATIENCE, compression=compression)
    assert response.payload.body == bytes(314159)


def test_client_streaming(stub):
    request = kind("StreamingInputCallRequest")
    requests = [request(payload={"body": bytes(size)}) for size in REQUEST_SIZES]
    response = stub.input()(iter(requests), timeout=PATIENCE)
    assert response.aggregated_payload_size == 74922


def test_server_streaming(stub):
    request = kind("StreamingOutputCallRequest")(
        response_parameters=[{"size": size} for size in SIZES]
    )
    responses = stub.output()(request, timeout=PATIENCE)
    assert [len(each.payload.body) for each in responses] == [*SIZES]


def test_ping_pong(stub):
    requests = Requests()
    responses = stub.duplex()(iter(requests), timeout=PATIENCE)
    for size, sent in zip(SIZES, REQUEST_SIZES, strict=True):
        requests.send(output_request(size, sent))
        assert len(next(responses).payload.body) == size
    requests.end()
    assert [*responses] == []


def test_empty_stream(stub):
    responses = stub.duplex()(iter(()), timeout=PATIENCE)
    assert [*responses] == []
    assert responses.code() == grpc.StatusCode.OK


METADATA = ((ECHOED, "test_initial_metadata_value"), (ECHOED_BIN, b"\xab\xab\xab"))


def test_custom_metadata_of_a_unary_call(stub):
    request = kind("SimpleRequest")(response_size=314159, payload={"body": bytes(271828)})
    _, call = stub.unary().with_call(request, timeout=PATIENCE, metadata=METADATA)
    assert METADATA[0] in [tuple(each) for each in call.initial_metadata()]
    assert METADATA[1] in [tuple(each) for each in call.trailing_metadata()]


def test_custom_metadata_of_a_stream(stub):
    requests = iter([output_request(314159, 271828)])
    call = stub.duplex()(requests, timeout=PATIENCE, metadata=METADATA)
    assert len(next(call).payload.body) == 314159
    assert METADATA[0] in [tuple(each) for each in call.initial_metadata()]
    assert [*call] == []
    assert METADATA[1] in [tuple(each) for each in call.trailing_metadata()]


@pytest.mark.parametrize("text", ["test status message", TEXT], ids=["plain", "special"])
@pytest.mark.parametrize("name", ["unary", "stream"])
def test_status_code_and_message(stub, name, text):
    """The case special_status_message, too."""
    status = {"code": 2, "message": text}
    request = kind("StreamingOutputCallRequest")(response_status=status)
    calls = {
        "unary": lambda: stub.unary()(kind("SimpleRequest")(response_status=status), PATIENCE),
        "stream": lambda: next(stub.duplex()(iter([request]), PATIENCE)),
    }
    with pytest.raises(grpc.RpcError) as caught:
        calls[name]()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, text)


@pytest.mark.parametrize("service", [SERVICE, "grpc.testing.UnimplementedService"])
def test_unimplemented_method_and_service(stub, service):
    with pytest.raises(grpc.RpcError) as caught:
        empty_call(stub, "UnimplementedCall", service)(kind("Empty")(), timeout=PATIENCE)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_cancel_after_begin(served, stub):
    before, received = served.service.num_cancelled, served.service.num_inputs
    requests = Requests()
    call = stub.input().future(iter(requests), timeout=PATIENCE)
    requests.send(kind("StreamingInputCallRequest")(payload={"body": b"x"}))
    eventually(lambda: served.service.num_inputs > received)
    call.cancel()
    assert call.cancelled()
    eventually(lambda: served.service.num_cancelled == before + 1)
    requests.end()


def test_cancel_after_first_response(served, stub):
    before = served.service.num_cancelled
    requests = Requests()
    call = stub.duplex()(iter(requests), timeout=PATIENCE)
    requests.send(output_request(31415, 27182))
    assert len(next(call).payload.body) == 31415
    call.cancel()
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() == grpc.StatusCode.CANCELLED
    eventually(lambda: served.service.num_cancelled == before + 1)
    requests.end()


def test_timeout_on_sleeping_server(served, stub):
    before = served.service.num_cancelled
    request = output_request(31415, 27182, interval_us=10**9)
    call = stub.duplex()(iter([request]), timeout=0.05)
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: served.service.num_cancelled == before + 1)


def test_many_calls_of_a_channel_at_once(stub):
    """The case rpc_soak, in small."""
    request = kind("SimpleRequest")(response_size=100)
    calls = [stub.unary().future(request, timeout=PATIENCE) for _ in range(200)]
    assert {len(call.result().payload.body) for call in calls} == {100}
