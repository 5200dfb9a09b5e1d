import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import numpy as np
import pytest
from google.protobuf import text_format

from mindspore_serving.client import (
    Client,
    ClientGrpcAsyncError,
    ClientGrpcAsyncResult,
    SSLConfig,
)
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.waiting import PATIENCE


@pytest.fixture
def client(address):
    with Client(address, "add", "add_cast", 2) as client:
        yield client


@pytest.mark.parametrize(
    "dtype", [row.numpy for row in dtypes.TABLE if row.numpy is not None], ids=str
)
@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (0,)])
def test_arrays_of_every_type_come_back(client, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    (instance,) = client.infer({"x": array})
    np.testing.assert_array_equal(instance["x"], array, strict=True)
    assert not instance["x"].flags.writeable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, np.array([7], np.int64)),
        (1.5, np.array([1.5], np.float64)),
        (True, np.array([True])),
        (np.float32(2), np.array(2, np.float32)),
        (np.uint8(2), np.array(2, np.uint8)),
        (np.array([1, 2], ">i4"), np.array([1, 2], "<i4")),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        ([1, 2], np.array([1, 2], np.int64)),
        ((1.5, 2), np.array([1.5, 2], np.float64)),
        ([[True], [False]], np.array([[True], [False]])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.ones(2, np.int8), np.zeros(2, np.int8)], np.array([[1, 1], [0, 0]], np.int8)),
        ([], np.array([], np.float64)),
        ([1, None], np.array([1, np.nan])),
        ([[None], [2.5]], np.array([[np.nan], [2.5]])),
    ],
)
def test_numbers_are_sent_as_arrays(client, value, expected):
    (instance,) = client.infer({"x": value})
    np.testing.assert_array_equal(instance["x"], expected, strict=True)


@pytest.mark.parametrize("value", ["h\u00e9", "", b"\xff\x00", b""])
def test_texts_are_sent_with_shape_1(client, service, value):
    assert client.infer([{"x": value}]) == [{"x": value}]
    assert list(service.requests[0].instances[0].items["x"].shape.dims) == [1]


def test_the_request_names_servable_method_and_version(client, service):
    client.infer(({"x": 1}, {"x": 2}))
    spec = service.requests[0].servable_spec
    assert (spec.name, spec.method_name, spec.version_number) == ("add", "add_cast", 2)
    assert len(service.requests[0].instances) == 2


def test_the_golden_bytes_are_sent(service, address):
    with Client(address, "add", "add_cast", 1) as client:
        client.infer([{"x1": np.array([1, 2], np.float32)}, {"s": "hi"}])
    text = """
        servable_spec { name: "add" method_name: "add_cast" version_number: 1 }
        instances { items { key: "x1" value {
            shape { dims: 2 } dtype: MS_FLOAT32 data: "\\000\\000\\200?\\000\\000\\000@" } } }
        instances { items { key: "s" value {
            shape { dims: 1 } dtype: MS_STRING bytes_val: "hi" } } }
    """
    assert service.requests == [text_format.Parse(text, pb.PredictRequest())]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1], [2, 3]], "should have equal lengths"),
        (["a"], "should hold numbers"),
        ([True, None], "should hold numbers"),
        (["a", None], "should hold numbers"),
        ([2**2000, None], "should hold numbers"),
        ([2**70], "should hold numbers"),
        ({"b64": ""}, "Not support value type <class 'dict'>"),
        (None, "Not support value type <class 'NoneType'>"),
        (np.bool_(1), "Not support value type <class 'numpy.bool"),
        (np.array(["a"]), "Unknown data type <U1"),
        (np.array([None]), "Unknown data type object"),
        (np.array([1j]), "Unknown data type complex128"),
        (2**70, "out of the range of int64"),
    ],
)
def test_other_values_are_refused(client, value, text):
    with pytest.raises(RuntimeError, match=text):
        client.infer({"x": value})


@pytest.mark.parametrize("instances", [1, [1], "x", [{"x": 1}, None]])
def test_an_instance_that_is_no_dict_is_refused(client, instances):
    with pytest.raises(RuntimeError, match="instance should be a map"):
        client.infer(instances)


def test_a_failed_instance_is_an_error_among_results(client, service):
    service.answer = lambda request, context: pb.PredictReply(
        instances=[request.instances[0], pb.Instance()],
        error_msg=[pb.ErrorMsg(), pb.ErrorMsg(error_code=3, error_msg=b"boom")],
    )
    good, bad = client.infer([{"x": "a"}, {"x": "b"}])
    assert good == {"x": "a"}
    assert bad == {"error": "boom"}


def test_a_failed_request_is_a_single_error(client, service):
    service.answer = lambda request, context: pb.PredictReply(
        error_msg=[pb.ErrorMsg(error_code=2, error_msg=b"nope")]
    )
    assert client.infer({"x": 1}) == {"error": "nope"}
    assert client.infer([{"x": 1}, {"x": 2}]) == {"error": "nope"}


@pytest.mark.parametrize(("values", "expected"), [([b"a", b"b"], ["a", "b"]), ([], [])])
def test_several_texts_are_a_list(client, service, values, expected):
    item = pb.Tensor(dtype=pb.MS_STRING, bytes_val=values)
    service.answer = lambda request, context: pb.PredictReply(
        instances=[pb.Instance(items={"y": item})]
    )
    assert client.infer({}) == [{"y": expected}]


def test_the_name_of_an_input_is_a_str(client):
    with pytest.raises(RuntimeError, match="The name of an input should be str, but actually"):
        client.infer({1: 2})


def test_a_transport_failure_is_printed_and_returned(start, capsys):
    port = start()
    with Client(f"127.0.0.1:{port}", "add", "missing") as client:
        client.stub.Predict = client.channel.unary_unary(
            "/mindspore.serving.proto.MSService/None",
            lambda body: body,
            pb.PredictReply.FromString,
        )
        result = client.infer({"x": 1})
    assert result == {"error": "Grpc Error, (12, 'unimplemented'), Method not found!"}
    assert capsys.readouterr().out.splitlines() == [result["error"]]


def infer_at(address, **options):
    with Client(address, "add", "add_cast", **options) as client:
        return client.infer({"x": 1}, timeout=PATIENCE)["error"]


def test_an_error_of_the_transport_has_advice(start):
    assert infer_at("127.0.0.1:9").endswith("; does the server run, and is this its gRPC port?")
    no_tls = infer_at(f"127.0.0.1:{start()}", ssl_config=SSLConfig())
    assert no_tls.endswith("; the server has no TLS: leave out ssl_config")


def test_an_http_port_is_recognised(tmp_path):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()
        error = infer_at(f"127.0.0.1:{server.server_port}")
    assert error.endswith("; this is an HTTP port: use the server's gRPC port (5500 by default)")


def test_errors_of_the_transport_are_not_logged_by_its_library(tmp_path):
    source = (
        "from mindspore_serving.client import Client, SSLConfig\n"
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "import threading\n"
        "def answer():\n"
        "    connection, _ = server.accept()\n"
        "    connection.recv(10)\n"
        "    connection.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n' * 9)\n"
        "threading.Thread(target=answer, daemon=True).start()\n"
        "address = f'127.0.0.1:{server.getsockname()[1]}'\n"
        "with Client(address, 'a', 'b', ssl_config=SSLConfig()) as client:\n"
        "    client.infer({'x': 1}, timeout=60)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_nobody_listening_is_unavailable(tmp_path):
    with Client(f"unix:{tmp_path}/nobody", "add", "add_cast") as client:
        assert "Grpc Error, (14, 'unavailable'), " in client.infer({"x": 1})["error"]


def test_a_unix_socket_is_an_address(start, tmp_path):
    start(address=f"unix:{tmp_path}/socket")
    with Client(f"unix:{tmp_path}/socket", "add", "add_cast") as client:
        assert client.infer({"x": "a"}) == [{"x": "a"}]


@pytest.fixture
def stuck(service):
    """Makes the server answer only when set."""
    go = threading.Event()

    def answer(request, context):
        go.wait(PATIENCE)
        return pb.PredictReply(instances=request.instances)

    service.answer = answer
    yield go
    go.set()


def test_a_call_that_takes_too_long_is_a_deadline_exceeded(address, stuck):
    with Client(address, "add", "add_cast", timeout=0.05) as client:
        for result in (client.infer({"x": 1}), Client.infer(client, {"x": 1}, timeout=0.01)):
            assert "Grpc Error, (4, 'deadline exceeded'), " in result["error"]


def test_infer_async_does_not_wait(client, stuck):
    replies = [client.infer_async({"x": f"{index}"}) for index in range(3)]
    assert all(isinstance(reply, ClientGrpcAsyncResult) for reply in replies)
    with pytest.raises(grpc.FutureTimeoutError):
        replies[0].result(timeout=0.01)
    stuck.set()
    assert [reply.result() for reply in replies] == [[{"x": f"{index}"}] for index in range(3)]


def test_the_result_of_a_failed_async_call_raises(tmp_path):
    with Client(f"unix:{tmp_path}/nobody", "add", "add_cast") as client:
        reply = client.infer_async({"x": 1})
        with pytest.raises(grpc.RpcError):
            reply.result()
        with pytest.raises(RuntimeError, match="Not support value type"):
            client.infer_async({"x": None})


def test_an_async_error_returns_its_error():
    assert ClientGrpcAsyncError({"error": "x"}).result() == {"error": "x"}


def test_large_messages_pass(service, address):
    array = np.zeros(8 << 20, np.uint8)
    service.answer = lambda request, context: pb.PredictReply(
        instances=[pb.Instance(items={"n": pb.Tensor(dtype=pb.MS_INT8, data=b"\1")})]
    )
    with Client(address, "add", "add_cast") as client:
        result = client.infer({"x": array})
    assert "(8, 'resource exhausted')" in result["error"]  # the server's limit, not the client's


@pytest.mark.parametrize(
    "make",
    [
        lambda port: Client("127.0.0.1", port, "add", "add_cast"),
        lambda port: Client("127.0.0.1", port, "add", "add_cast", 3),
        lambda port: Client("127.0.0.1", port, "add", method_name="add_cast", version_number=3),
        lambda port: Client("127.0.0.1", port=port, servable_name="add", method_name="add_cast"),
        lambda port: Client(ip="127.0.0.1", port=port, servable_name="add", method_name="add_cast"),
        lambda port: Client(f"127.0.0.1:{port}", "add", method_name="add_cast"),
        lambda port: Client(
            address=f"127.0.0.1:{port}", servable_name="add", method_name="add_cast"
        ),
    ],
)
def test_old_and_new_ways_to_name_the_server(start, make):
    port = start()
    with make(port) as client:
        assert client.address == f"127.0.0.1:{port}"
        assert (client.servable_name, client.method_name) == ("add", "add_cast")
        assert client.version_number in (0, 3)
        assert client.infer({"x": "a"}) == [{"x": "a"}]


ADDRESS = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1, "s", "m"), "Parameter 'address' should be str, but actually <class 'int'>"),
        (("", "s", "m"), "Parameter 'address' should not be empty str"),
        (("127.0.0.1", "s", "m"), "'address' is '127.0.0.1', expected 'ip:port'"),
        (("http://127.0.0.1:1500", "s", "m"), "'address' is 'http://.*', expected 'ip:port'"),
        ((ADDRESS, 5, "m"), "Parameter 'servable_name' should be str, but actually <class 'int'>"),
        ((ADDRESS, "", "m"), "Parameter 'servable_name' should not be empty str"),
        ((ADDRESS, "s", None), "Parameter 'method_name' should be str"),
        ((ADDRESS, "s", "m", -1), "Parameter 'version_number' should be >= 0"),
        ((ADDRESS, "s", "m", True), "Parameter 'version_number' should be int"),
        ((ADDRESS, "s", "m", "1"), "Parameter 'version_number' should be int"),
        ((ADDRESS, "s", "m", 0, 1), "The type of ssl_config should be type of SSLConfig"),
    ],
)
def test_a_wrong_argument_is_named(args, text):
    with pytest.raises(RuntimeError, match=text):
        Client(*args)


@pytest.mark.parametrize("timeout", [0, -1, "1", True])
def test_a_wrong_timeout_is_named(timeout):
    with pytest.raises(RuntimeError, match="Parameter 'timeout' should be None or a number"):
        Client(ADDRESS, "s", "m", timeout=timeout)
    with (
        Client(ADDRESS, "s", "m") as client,
        pytest.raises(RuntimeError, match="Parameter 'timeout'"),
    ):
        client.infer({}, timeout=timeout)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"certificate": "a"}, "certificate and private_key should be passed at the same time"),
        ({"private_key": "a"}, "certificate and private_key should be passed at the same time"),
        ({"custom_ca": 1}, "Parameter 'custom_ca' should be str, but actually <class 'int'>"),
        ({"custom_ca": ""}, "Parameter 'custom_ca' should not be empty str"),
    ],
)
def test_a_wrong_ssl_config_is_named(kwargs, text):
    with pytest.raises(RuntimeError, match=text):
        SSLConfig(**kwargs)


def test_scripts_may_delete_the_stub(client):
    del client.stub
    assert not hasattr(client, "stub")
