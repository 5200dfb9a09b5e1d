"""HTTP/2 over TLS, chosen by ALPN: programs and grpcio as clients of the port of REST."""

import shutil
import subprocess
from contextlib import closing

import grpc
import pytest

from tests.frontends.grpc.interop.service import SERVICE, Interop, certificates_of, kind
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certificates_of(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(background, made):
    with closing(Interop(background, tls=made[1])) as running:
        yield running


def run(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("option", "version"), [("--http2", "2"), ("--http1.1", "1.1"), ("--no-alpn", "1.1")]
)
def test_curl_gets_the_version_that_alpn_chooses(served, made, option, version):
    url = f"https://{served.address}/health"
    asked = run("curl", "-s", option, "--cacert", made[0], "-w", " %{http_version}", url)
    assert asked == f"ready {version}"


def test_h2load_gets_all_its_answers(served):
    url = f"https://{served.address}/health"
    assert "500 succeeded" in run("h2load", "-n500", "-c2", "-m50", url)


def test_nghttp_gets_an_answer(served):
    assert "ready" in run("nghttp", "--no-verify-peer", f"https://{served.address}/health")


def test_grpcio_calls_by_tls(served, made):
    with open(made[0], "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    request, response = kind("SimpleRequest"), kind("SimpleResponse")
    with grpc.secure_channel(served.address, credentials) as channel:
        coders = request.SerializeToString, response.FromString
        call = channel.unary_unary(f"/{SERVICE}/UnaryCall", *coders)
        answer = call(request(response_size=100_000), timeout=PATIENCE)
    assert len(answer.payload.body) == 100_000
