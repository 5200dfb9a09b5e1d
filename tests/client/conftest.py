"""A small gRPC server, and certificates, for the tests of the clients."""

import datetime
import ipaddress
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.proto import ms_service_pb2_grpc as pb_grpc
from tests.e2e.authority import key_usage


class Service(pb_grpc.MSServiceServicer):
    """Answers with what `answer` makes of the request; by default with its instances."""

    def __init__(self):
        self.requests = []
        self.answer = lambda request, context: pb.PredictReply(
            servable_spec=request.servable_spec, instances=request.instances
        )

    def Predict(self, request, context):
        self.requests.append(request)
        return self.answer(request, context)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def start(service):
    """A way to start the server, with TLS if given credentials; returns its port."""
    servers = []

    def start_one(credentials=None, address="127.0.0.1:0") -> int:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        pb_grpc.add_MSServiceServicer_to_server(service, server)
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        server.start()
        servers.append(server)
        return port

    yield start_one
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def address(start):
    return f"127.0.0.1:{start()}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Path:
    """A directory with ca.crt, and NAME.crt and NAME.key of "server" and "client"."""
    directory = tmp_path_factory.mktemp("certificates")
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("test ca", ca_key, "test ca", ca_key)
    (directory / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, "test ca", ca_key)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (directory / f"{name}.crt").write_bytes(pem)
        (directory / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return directory


def _certificate(name, key, issuer, issuer_key) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    # Python 3.13 and later demand the identifiers and the usage of keys.
    subject_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
        .add_extension(subject_id, critical=False)
        .add_extension(issuer_id, critical=False)
        .add_extension(key_usage(is_ca=name == issuer), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
