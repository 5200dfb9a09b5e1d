"""What may follow "start_grpc_server(" and "start_restful_server(", and what is said otherwise."""

import socket

import pytest

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.frontends.address import Address, listen, parse
from tests.ports import free_port

GRPC, REST = "Serving gRPC", "RESTful server"


def refusal(text, tag=GRPC, *, allow_unix=True):
    with pytest.raises(InvalidInputs) as caught:
        parse(text, tag, allow_unix=allow_unix)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5500", "127.0.0.1", 5500),
        ("localhost:1", "localhost", 1),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
        ("[::1]:1500", "::1", 1500),
    ],
)
def test_ip_and_port(text, host, port):
    assert parse(text, GRPC, allow_unix=False) == Address(text, host=host, port=port)


def test_a_unix_socket_is_a_path():
    address = parse("unix:/tmp/serving.sock", GRPC, allow_unix=True)
    assert address == Address("unix:/tmp/serving.sock", path="/tmp/serving.sock")


@pytest.mark.parametrize("tag", [GRPC, REST])
@pytest.mark.parametrize("text", ["127.0.0.1", "", "5500", "localhost"])
def test_without_a_colon_the_format_is_illegal(text, tag):
    assert refusal(text, tag).startswith(
        f"Serving Error: The format of the {tag} address '{text}' is illegal"
    )


@pytest.mark.parametrize("text", ["127.0.0.1:", ":5500", ":"])
def test_ip_and_port_must_both_be_there(text):
    assert refusal(text) == f"Serving Error: Missing ip or port of the {GRPC} address '{text}'"


@pytest.mark.parametrize("port", ["abc", "50a", "-1", "1.5", " 5500", "٣"])
def test_a_port_is_a_number(port):
    assert refusal(f"127.0.0.1:{port}") == (
        f"Serving Error: The type of {GRPC} address '127.0.0.1:{port}' port is not a number"
    )


@pytest.mark.parametrize("port", ["0", "65536", "99999999", "9" * 5000])
def test_a_port_is_in_its_range(port):
    assert refusal(f"127.0.0.1:{port}", REST) == (
        f"Serving Error: The port of the {REST} address '127.0.0.1:{port}' is out of legal range "
        "[1 ~ 65535]"
    )


def test_a_unix_socket_needs_a_path():
    assert refusal("unix:") == "Serving Error: Empty grpc server unix domain socket address"


def test_a_unix_socket_is_refused_where_there_is_none():
    text = refusal("unix:/tmp/s.sock", REST, allow_unix=False)
    assert "RESTful server does not support binding to unix domain socket" in text


def test_listen_gives_a_listening_socket():
    with listen(parse(f"127.0.0.1:{free_port()}", REST, allow_unix=False)) as listener:
        with socket.create_connection(listener.getsockname()):
            pass
        assert not listener.getblocking()


def test_an_address_in_use_is_a_start_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StartError) as caught:
            listen(parse(text, REST, allow_unix=False))
    assert str(caught.value) == (
        "Serving Error: RESTful server start failed, bind to the socket address "
        f"{text} failed: Address already in use; choose another port, or end the process that "
        "listens on it"
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1:5000", "127.0.0.0.1", "127.0.256.1", "127.0..1", "a" * 70, "192.0.2.1"]
)
def test_a_host_that_is_none_of_ours_is_a_start_error(host):
    address = parse(f"{host}:5000", REST, allow_unix=False)
    with pytest.raises(StartError, match="bind to the socket address .* failed: ."):
        listen(address)
