"""Addresses that cannot be used, ports that are taken, unix sockets, TLS files."""

import socket
import ssl

import pytest

from mindspore_serving import server
from mindspore_serving.client import Client
from tests.ports import free_port

START = {"Serving gRPC": server.start_grpc_server, "RESTful server": server.start_restful_server}
both = pytest.mark.parametrize("tag", START)


@both
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("5500", "The format of the {tag} address '5500' is illegal"),
        ("127.0.0.1:", "Missing ip or port of the {tag} address '127.0.0.1:'"),
        (":5500", "Missing ip or port of the {tag} address ':5500'"),
        ("127.0.0.1:x", "The type of {tag} address '127.0.0.1:x' port is not a number"),
        ("127.0.0.1:-1", "port is not a number"),
        ("127.0.0.1:٥", "port is not a number"),
        ("127.0.0.1:0", "The port of the {tag} address '127.0.0.1:0' is out of legal range [1"),
        ("127.0.0.1:65536", "is out of legal range [1 ~ 65535]"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_reason(stopped, tag, address, words):
    with pytest.raises(RuntimeError) as caught:
        START[tag](address)
    assert words.format(tag=tag) in str(caught.value)


@both
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:5000", "127.0.0.0.1", "127.0.256.1", "192.0.2.1", "no-such-host.invalid", "a..b"],
)
def test_an_address_that_cannot_be_bound_is_refused(stopped, tag, host):
    address = f"{host}:{free_port()}"
    with pytest.raises(RuntimeError) as caught:
        START[tag](address)
    assert "server start failed" in str(caught.value)
    assert address in str(caught.value)


@both
@pytest.mark.parametrize("bad", [None, 5500, b"127.0.0.1:5500", ""])
def test_an_address_of_another_type_is_refused(stopped, tag, bad):
    with pytest.raises(RuntimeError, match="Parameter 'address' should"):
        START[tag](bad)


@both
@pytest.mark.parametrize("size", [0, 513, 1.5, True])
def test_a_message_size_out_of_range_is_refused(stopped, tag, size):
    with pytest.raises(RuntimeError, match="max_msg_mb_size"):
        START[tag](f"127.0.0.1:{free_port()}", max_msg_mb_size=size)


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in START for b in START if a != b])
def test_a_port_that_the_other_server_has_is_refused(stopped, first, second):
    address = f"127.0.0.1:{free_port()}"
    START[first](address)
    with pytest.raises(RuntimeError, match="server start failed"):
        START[second](address)
    START[second](f"127.0.0.1:{free_port()}")


@both
def test_a_port_that_another_program_has_is_refused_and_usable_later(stopped, tag):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        address = f"127.0.0.1:{port}"
        with pytest.raises(RuntimeError, match="server start failed"):
            START[tag](address)
    START[tag](address)


def test_rest_does_not_listen_on_a_unix_socket(stopped):
    with pytest.raises(RuntimeError, match="does not support binding to unix domain socket"):
        server.start_restful_server(f"unix:{stopped}/s")


def test_grpc_listens_on_a_unix_socket_whose_old_file_is_in_the_way(stopped):
    with pytest.raises(RuntimeError, match="Empty grpc server unix domain socket address"):
        server.start_grpc_server("unix:")
    with pytest.raises(RuntimeError, match="server start failed"):
        server.start_grpc_server(f"unix:{stopped}/no/where/s")
    assert not (stopped / "no").exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{stopped}/s")
    server.start_grpc_server(f"unix:{stopped}/s")
    with Client(f"unix:{stopped}/s", "toy", "add") as client:
        assert "servable is not available" in client.infer({"x": 1})["error"]
    server.stop()
    assert not (stopped / "s").exists()


def test_the_directory_of_a_unix_socket_is_made(stopped, monkeypatch):
    monkeypatch.chdir(stopped)
    server.start_grpc_server("unix:unix_socket_files/grpc")
    with Client("unix:unix_socket_files/grpc", "toy", "add") as client:
        assert "servable is not available" in client.infer({"x": 1})["error"]


def test_a_file_that_is_no_socket_is_not_overwritten(stopped):
    (stopped / "s").write_text("precious")
    with pytest.raises(RuntimeError, match="server start failed"):
        server.start_grpc_server(f"unix:{stopped}/s")
    assert (stopped / "s").read_text() == "precious"


def test_an_ip_6_address_works(stopped):
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback")
    grpc_port, http_port = free_port(), free_port()
    server.start_grpc_server(f"[::1]:{grpc_port}")
    server.start_restful_server(f"[::1]:{http_port}")
    with Client(f"[::1]:{grpc_port}", "toy", "add") as client:
        assert "servable is not available" in client.infer({"x": 1})["error"]
    socket.create_connection(("::1", http_port)).close()


@both
def test_a_configuration_that_is_no_ssl_config_is_refused(stopped, tag):
    with pytest.raises(RuntimeError, match="type of ssl_config should be type of SSLConfig"):
        START[tag](f"127.0.0.1:{free_port()}", ssl_config=ssl.create_default_context())
