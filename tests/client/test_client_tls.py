import grpc
import pytest

from mindspore_serving.client import Client, SSLConfig
from tests.waiting import PATIENCE


@pytest.fixture
def server(start, certificates):
    """A way to start a TLS server, which verifies clients if told; returns its address."""

    def start_server(verify_client: bool) -> str:
        key, chain = ((certificates / f"server.{end}").read_bytes() for end in ("key", "crt"))
        ca = (certificates / "ca.crt").read_bytes() if verify_client else None
        credentials = grpc.ssl_server_credentials([(key, chain)], ca, verify_client)
        return f"127.0.0.1:{start(credentials)}"

    return start_server


def infer(address, **files):
    config = SSLConfig(**{name: str(path) for name, path in files.items()}) if files else None
    with Client(address, "add", "add_cast", ssl_config=config) as client:
        return client.infer({"x": "a"}, timeout=PATIENCE)


def test_tls_without_client_certificate(server, certificates):
    assert infer(server(False), custom_ca=certificates / "ca.crt") == [{"x": "a"}]


def test_mutual_tls(server, certificates):
    files = {
        "certificate": certificates / "client.crt",
        "private_key": certificates / "client.key",
        "custom_ca": certificates / "ca.crt",
    }
    assert infer(server(True), **files) == [{"x": "a"}]


def test_a_server_that_verifies_refuses_a_client_without_a_certificate(server, certificates):
    result = infer(server(True), custom_ca=certificates / "ca.crt")
    assert "(14, 'unavailable')" in result["error"]
    assert result["error"].endswith("or a certificate of the client?")


def test_a_server_of_an_unknown_authority_is_not_trusted(server):
    with Client(server(False), "add", "add_cast", ssl_config=SSLConfig()) as client:
        error = client.infer({"x": "a"}, timeout=PATIENCE)["error"]
    assert "(14, 'unavailable')" in error
    assert error.endswith("; custom_ca has not signed the server's certificate")


def test_a_client_without_tls_gets_no_answer_from_a_tls_server(server):
    error = infer(server(False))["error"]
    assert error.endswith(
        "; does the server require TLS (ssl_config), or a certificate of the client?"
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.pem"):
        infer("127.0.0.1:1", custom_ca=tmp_path / "nothing.pem")
