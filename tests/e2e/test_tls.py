"""TLS and mutual TLS on both protocols, with certificates made here."""

import http.client
import json
import ssl
import warnings
from pathlib import Path

import pytest
from cryptography import x509

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


@pytest.fixture
def start(stopped, ours):
    """start(verify_client): the ports of a server of "toy" with TLS on both protocols."""
    write_servable(stopped, "toy", TWICE)

    def run(verify_client: bool) -> tuple[int, int]:
        tls = server.SSLConfig(*ours.issue("server"), ours.ca, verify_client)
        ports = free_port(), free_port()
        server.start_servables(config(stopped, "toy"))
        server.start_grpc_server(f"127.0.0.1:{ports[0]}", ssl_config=tls)
        server.start_restful_server(f"127.0.0.1:{ports[1]}", ssl_config=tls)
        return ports

    return run


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


def trusting(authority: Authority, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def test_a_client_that_trusts_the_server_is_served(start, ours):
    grpc_port, http_port = start(verify_client=False)
    assert by_grpc(grpc_port, ClientTls(custom_ca=ours.ca))[0]["y"] == 42
    assert by_http(http_port, trusting(ours)) == {"instances": [{"y": 42}]}


def test_large_bodies_and_answers_pass_in_sequence(start, ours):
    _, port = start(verify_client=False)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=trusting(ours), timeout=PATIENCE
    )
    for size in (1, 5_000_000, 70_000):
        text = "x" * size
        connection.request("POST", "/model/toy:double", json.dumps({"instances": {"x": text}}))
        assert json.loads(connection.getresponse().read()) == {"instances": [{"y": text * 2}]}
    connection.close()


def test_an_error_can_be_read_while_the_client_still_sends(start, ours):
    _, port = start(verify_client=False)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=trusting(ours), timeout=PATIENCE
    )
    connection.request("POST", "/model/toy", "x" * 5_000_000)
    assert "please check url" in connection.getresponse().read().decode()
    connection.close()


def test_clients_without_the_right_authority_or_tls_get_nothing(start, theirs):
    grpc_port, http_port = start(verify_client=False)
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


def test_old_versions_of_tls_are_refused(start, ours):
    _, port = start(verify_client=False)
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


def test_with_verify_client_only_clients_of_that_authority_are_served(start, ours, theirs):
    grpc_port, http_port = start(verify_client=True)
    good, bad = ours.issue("client"), theirs.issue("client")
    assert by_grpc(grpc_port, ClientTls(*good, ours.ca))[0]["y"] == 42
    assert by_http(http_port, trusting(ours, good)) == {"instances": [{"y": 42}]}
    for certificate in (None, bad):
        tls = ClientTls(*(certificate or (None, None)), ours.ca)
        assert "Grpc Error, (14, 'unavailable')" in by_grpc(grpc_port, tls)["error"]
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            by_http(http_port, trusting(ours, certificate))
    assert by_grpc(grpc_port, ClientTls(*good, ours.ca))[0]["y"] == 42


@pytest.mark.parametrize("which", ["certificate", "private_key", "custom_ca", "mismatch", "locked"])
def test_certificate_files_that_cannot_be_used_are_a_start_error(stopped, ours, which):
    certificate, private_key = ours.issue("server")
    paths = {"certificate": certificate, "private_key": private_key, "custom_ca": ours.ca}
    if which == "mismatch":
        paths["private_key"] = ours.issue("other")[1]
    elif which == "locked":
        paths["certificate"], paths["private_key"] = ours.issue("locked", b"secret")
    else:
        broken = stopped / "broken.pem"
        broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        paths[which] = str(broken)
    tls = server.SSLConfig(**paths, verify_client=True)
    for start in (server.start_grpc_server, server.start_restful_server):
        address = f"127.0.0.1:{free_port()}"
        with pytest.raises(RuntimeError) as caught:
            start(address, ssl_config=tls)
        assert paths.get(which, paths["private_key"]) in str(caught.value)
        start(address)
        server.stop()


@pytest.mark.parametrize("which", ["certificate", "private_key", "custom_ca"])
def test_certificate_files_that_do_not_exist_are_named(stopped, ours, which):
    certificate, private_key = ours.issue("server")
    paths = {"certificate": certificate, "private_key": private_key, "custom_ca": ours.ca}
    paths[which] = str(stopped / "gone.pem")
    tls = server.SSLConfig(**paths, verify_client=True)
    with pytest.raises(FileNotFoundError, match=r"gone\.pem"):
        server.start_grpc_server(f"127.0.0.1:{free_port()}", ssl_config=tls)
    with pytest.raises(RuntimeError, match=r"gone\.pem"):
        server.start_restful_server(f"127.0.0.1:{free_port()}", ssl_config=tls)


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "has expired on"), (13, "expires on"), (10_950, None), (15, None)]
)
def test_a_certificate_that_expires_is_warned_of_at_the_start(tmp_path, run_script, days, words):
    certificate, key = Authority(tmp_path, "authority").issue("server", days=days)
    end = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc
    script = run_script(
        "from mindspore_serving import server\n"
        f"tls = server.SSLConfig({certificate!r}, {key!r})\n"
        f"server.start_restful_server('127.0.0.1:{free_port()}', ssl_config=tls)\n"
    )
    assert script.status() == 0
    text = f"the certificate in {certificate} {words} {end:%Y-%m-%d}"
    assert (text in script.text) == (words is not None)
    assert ("WARNING" in script.text) == (words is not None)
