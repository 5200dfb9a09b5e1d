"""TLS and mutual TLS on both protocols, with certificates made here."""

import http.client
import json
import ssl
import warnings

import httpx
import pytest

from mindspore_serving import server
from mindspore_serving.client import Client
from mindspore_serving.client import SSLConfig as ClientTls
from tests.e2e.authority import Authority
from tests.e2e.harness import config, write_servable
from tests.ports import free_port
from tests.waiting import PATIENCE

TWICE = """
@method("y")
def double(x):
    return x * 2
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def ports(request, tmp_path_factory, ours):
    """The ports, of gRPC and of HTTP, of a server of "toy" with TLS on both.

    It asks its clients for a certificate if a test says so."""
    directory = tmp_path_factory.mktemp("served")
    write_servable(directory, "toy", TWICE)
    verify_client = getattr(request, "param", False)
    tls = server.SSLConfig(*ours.issue("server"), ours.ca, verify_client)
    found = free_port(), free_port()
    try:
        server.start_servables(config(directory, "toy"))
        server.start_grpc_server(f"127.0.0.1:{found[0]}", ssl_config=tls)
        server.start_restful_server(f"127.0.0.1:{found[1]}", ssl_config=tls)
        yield found
    finally:
        server.stop()


def by_grpc(port: int, tls: ClientTls | None) -> object:
    with Client(f"127.0.0.1:{port}", "toy", "double", ssl_config=tls) as client:
        return client.infer({"x": 21})


def by_http(port: int, context: ssl.SSLContext) -> object:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE)
    try:
        connection.request("POST", "/model/toy:double", json.dumps({"instances": {"x": 21}}))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_http2_is_offered_by_tls_and_served(ports, ours):
    with httpx.Client(http2=True, verify=trusting(ours)) as client:
        url = f"https://127.0.0.1:{ports[1]}/model/toy:double"
        answer = client.post(url, json={"instances": {"x": 21}}, timeout=PATIENCE)
    assert (answer.http_version, answer.json()) == ("HTTP/2", {"instances": [{"y": 42}]})


def trusting(authority: Authority, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def test_a_client_that_trusts_the_server_is_served(ports, ours):
    grpc_port, http_port = ports
    assert by_grpc(grpc_port, ClientTls(custom_ca=ours.ca))[0]["y"] == 42
    assert by_http(http_port, trusting(ours)) == {"instances": [{"y": 42}]}


def test_large_bodies_and_answers_pass_in_sequence(ports, ours):
    _, port = ports
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=trusting(ours), timeout=PATIENCE
    )
    for size in (1, 5_000_000, 70_000):
        text = "x" * size
        connection.request("POST", "/model/toy:double", json.dumps({"instances": {"x": text}}))
        assert json.loads(connection.getresponse().read()) == {"instances": [{"y": text * 2}]}
    connection.close()


def test_an_error_can_be_read_while_the_client_still_sends(ports, ours):
    _, port = ports
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=trusting(ours), timeout=PATIENCE
    )
    connection.request("POST", "/model/toy", "x" * 5_000_000)
    assert "please check url" in connection.getresponse().read().decode()
    connection.close()


def test_clients_without_the_right_authority_or_tls_get_nothing(ports, theirs):
    grpc_port, http_port = ports
    assert (
        "Grpc Error, (14, 'unavailable')"
        in by_grpc(grpc_port, ClientTls(custom_ca=theirs.ca))["error"]
    )
    assert "Grpc Error, (14, 'unavailable')" in by_grpc(grpc_port, None)["error"]
    with pytest.raises(ssl.SSLCertVerificationError):
        by_http(http_port, trusting(theirs))
    plain = http.client.HTTPConnection("127.0.0.1", http_port, timeout=PATIENCE)
    plain.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.getresponse()
    plain.close()


def test_old_versions_of_tls_are_refused(ports, ours):
    _, port = ports
    context = trusting(ours)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert by_http(port, context) == {"instances": [{"y": 42}]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        by_http(port, context)


@pytest.mark.parametrize("ports", [True], ids=["verify_client"], indirect=True)
def test_with_verify_client_only_clients_of_that_authority_are_served(ports, ours, theirs):
    grpc_port, http_port = ports
    good, bad = ours.issue("client"), theirs.issue("client")
    assert by_grpc(grpc_port, ClientTls(*good, ours.ca))[0]["y"] == 42
    assert by_http(http_port, trusting(ours, good)) == {"instances": [{"y": 42}]}
    for certificate in (None, bad):
        tls = ClientTls(*(certificate or (None, None)), ours.ca)
        assert "Grpc Error, (14, 'unavailable')" in by_grpc(grpc_port, tls)["error"]
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            by_http(http_port, trusting(ours, certificate))
    assert by_grpc(grpc_port, ClientTls(*good, ours.ca))[0]["y"] == 42
