"""The cases of gRPC's interoperation tests with clients of other languages.

scripts/interop-clients DIRECTORY makes them; INTEROP_CLIENTS=DIRECTORY names it.
"""

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.frontends.grpc.interop.service import PROTO, Interop, descriptors
from tests.waiting import PATIENCE

CLIENTS = Path(__file__).parent / "clients"
UNARY = {
    "empty_unary",
    "large_unary",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "cancel_after_begin",
}
SERVER_STREAMS = {"server_streaming", "timeout_on_sleeping_server", "cancel_after_first_response"}
STREAMS = {*SERVER_STREAMS, "client_streaming", "ping_pong", "empty_stream"}
CONNECT = {*UNARY, "all_status_codes", "many_calls_at_once", "streams_are_refused"}
WEB = {*UNARY, *SERVER_STREAMS, "all_status_codes", "status_of_a_stream", "many_calls_at_once"}


@pytest.fixture(scope="module")
def served(background):
    with closing(Interop(background)) as made:
        yield made


@pytest.fixture
def descriptor_set(tmp_path):
    path = tmp_path / "descriptors"
    path.write_bytes(descriptors())
    return path


def client(program, part):
    """The directory of clients, if the program and that part of it are there."""
    place = os.environ.get("INTEROP_CLIENTS", "")
    if not place or not Path(place, part).exists() or not shutil.which(program):
        pytest.skip(f"scripts/interop-clients DIRECTORY makes {part} of INTEROP_CLIENTS")
    return Path(place).resolve()


def passed(served, *command):
    """The names of the cases that pass; none may fail."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in lines if line.startswith("failed ")], done.stdout
    return {line.removeprefix("passed ") for line in lines if line.startswith("passed ")}


def test_grpc_js(served):
    client("node", "npm/node_modules/@grpc/grpc-js")
    cases = passed(served, "node", CLIENTS / "grpc_js.mjs", served.address, PROTO)
    assert cases == {*UNARY, *STREAMS, "client_compressed_unary", "many_calls_at_once"}


@pytest.mark.parametrize(
    ("transport", "cases"),
    [
        *((f"connect-{each}", CONNECT) for each in ("http1", "http2", "binary", "gzip", "fetch")),
        *((f"grpc-web-{each}", WEB) for each in ("http1", "http2", "gzip", "fetch")),
        ("grpc", WEB),
    ],
)
def test_the_transports_of_connect(served, descriptor_set, transport, cases):
    client("node", "npm/node_modules/@connectrpc/connect-node")
    url = f"http://{served.address}"
    program = CLIENTS / "connect.mjs"
    assert passed(served, "node", program, transport, url, descriptor_set) == cases


def test_the_client_of_go(served):
    program = client("true", "go-client") / "go-client"
    cases = {*UNARY, *STREAMS, "client_compressed_unary", "many_calls_at_once"}
    assert passed(served, program, served.address) == cases


def test_the_client_of_java(served, descriptor_set):
    classes = client("java", "java") / "java"
    jars = f"{classes}:/usr/share/java/*"
    command = "java", "-cp", jars, "Client", "127.0.0.1", served.port, descriptor_set
    assert passed(served, *command) == {*UNARY, *STREAMS, "client_compressed_unary"}
