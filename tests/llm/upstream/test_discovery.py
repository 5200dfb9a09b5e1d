"""Upstreams by names of DNS, endpoints of Kubernetes and files; a resolver that is replaced, and an
API over TLS as a pod sees one."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.errors import UpstreamFailed
from mindspore_serving.llm.upstream import discovery
from mindspore_serving.llm.upstream.discovery import discover
from mindspore_serving.llm.upstream.targets import UpstreamTarget, read_target
from tests.e2e.authority import Authority
from tests.llm.upstream.asking import asking, prompt, text_of
from tests.llm.upstream.faulty import DONE, HEAD, faulty, piece, whole
from tests.llm.upstream.test_upstream_tls import answering
from tests.waiting import PATIENCE

TOKEN = "the-token-of-the-pod"


def read(text: str) -> list[UpstreamTarget]:
    return asyncio.run(discover(read_target(text), PATIENCE))


def fails(text: str) -> str:
    with pytest.raises(UpstreamFailed) as error:
        read(text)
    return str(error.value)


# --- DNS ------------------------------------------------------------------------------------------


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the resolver answers for fleet.test."""
    listed: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "fleet.test":
            return real(host, port, *arguments, **options)
        if not listed:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (
                socket.AF_INET6 if ":" in one else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (one, port),
            )
            for one in listed
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return listed


def test_a_name_has_an_upstream_for_each_address(addresses: list[str]) -> None:
    addresses += ["127.0.0.2", "127.0.0.3", "::1", "127.0.0.2"]
    targets = read("dns://fleet.test:8000/v1,weight=2,model=big")
    assert [target.origin for target in targets] == [
        *("http://127.0.0.2:8000", "http://127.0.0.3:8000", "http://[::1]:8000")
    ]
    first = UpstreamTarget("http://fleet.test:8000/v1", 2.0, "big", address="127.0.0.2")
    assert targets[0] == first
    assert read("dns+https://fleet.test:8000/v1")[0].origin == "https://127.0.0.2:8000"


def test_a_name_of_this_machine_is_resolved_by_the_system() -> None:
    assert "http://127.0.0.1:8000" in [target.origin for target in read("dns://localhost:8000/v1")]


def test_an_unknown_name_is_an_error_with_its_reason(addresses: list[str]) -> None:
    assert fails("dns://fleet.test:8000/v1") == (
        "dns://fleet.test:8000/v1 is not resolved: Name or service not known"
    )


def test_a_name_that_no_host_can_have_is_an_error() -> None:
    assert "is not resolved" in fails(f"dns://{'x' * 64}.test:8000/v1")


def test_upstreams_follow_the_addresses_of_a_name(addresses: list[str]) -> None:
    with faulty(lambda _: (HEAD, piece("Good day", "stop"), DONE)) as server:
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        options = {"discovery_interval": 0.02, "slow_start": 0}
        with asking(upstreams=[f"dns://fleet.test:{port}/v1"], **options) as asked:
            assert "is not resolved" in asked.model.unready
            addresses.append("127.0.0.1")
            asked.until(lambda: not asked.model.unready)
            assert text_of(asked.ask(prompt())) == "Good day"
            assert server.asked[0].headers["host"] == f"fleet.test:{port}"
            addresses.append("127.0.0.9")  # where nobody listens
            asked.until(lambda: len(asked.model.upstreams) == 2)
            addresses.clear()  # what was known stays
            assert text_of(asked.ask(prompt())) == "Good day"
            addresses.append("127.0.0.9")
            asked.until(lambda: "127.0.0.9" in asked.model.unready)
            assert [row.name for row in asked.model.upstreams] == [f"http://127.0.0.9:{port}"]


# --- Kubernetes -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Api:
    """The API of a cluster: its endpoint slices, and what it was asked."""

    slices: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An API over TLS, and the service account and the variables by which a pod finds it."""
    found = Api()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.paths.append(self.path)
            is_known = self.headers["authorization"] == f"Bearer {TOKEN}"
            status = found.status if is_known else 401
            body = {"kind": "EndpointSliceList", "items": found.slices}
            data = json.dumps(body if status == 200 else {"kind": "Status"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    authority = Authority(tmp_path, "cluster")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("api"))
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(Path(authority.ca).read_bytes())
    (account / "token").write_text(TOKEN + "\n")
    (account / "namespace").write_text("serving")
    monkeypatch.setattr(discovery, "ACCOUNT", account)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def endpoints(port: int, *rows: tuple[str, dict[str, Any]], kind: str = "IPv4") -> dict[str, Any]:
    """An EndpointSlice, as discovery.k8s.io/v1 has it."""
    return {
        "metadata": {"name": "llm-abcde", "namespace": "serving"},
        "addressType": kind,
        "endpoints": [{"addresses": [address], "conditions": state} for address, state in rows],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}, {"name": "grpc", "port": 1}],
    }


READY = {"ready": True, "serving": True, "terminating": False}
STOPPING = {"ready": False, "serving": True, "terminating": True}
STARTING = {"ready": False, "serving": False, "terminating": False}


def test_a_service_has_its_ready_endpoints(api: Api) -> None:
    rows = (("127.0.0.2", READY), ("127.0.0.3", STOPPING), ("127.0.0.4", STARTING))
    api.slices = [
        endpoints(8000, *rows, ("127.0.0.5", {})),  # no conditions: ready
        endpoints(9000, ("127.0.0.6", READY)),  # another port
        endpoints(8000, ("fd00::7", READY), kind="IPv6"),
        endpoints(8000, ("pod.test", READY), kind="FQDN"),
        {"addressType": "IPv4", "endpoints": None, "ports": None},
    ]
    targets = read("kubernetes://llm:8000/v1")
    assert [(target.origin, target.is_leaving) for target in targets] == [
        ("http://127.0.0.2:8000", False),
        ("http://127.0.0.3:8000", True),
        ("http://127.0.0.5:8000", False),
        ("http://[fd00::7]:8000", False),
    ]
    assert targets[0].url == "http://llm.serving.svc:8000/v1"
    read("kubernetes://llm.other:8000/v1")
    start, rest = "/apis/discovery.k8s.io/v1/namespaces/", "/endpointslices?labelSelector="
    label = "kubernetes.io%2Fservice-name%3Dllm"
    assert api.paths == [f"{start}serving{rest}{label}", f"{start}other{rest}{label}"]


def test_a_refusal_of_the_cluster_is_an_error_without_the_token(api: Api, tmp_path: Path) -> None:
    api.status = 403
    assert "the API of Kubernetes replied 403" in fails("kubernetes://llm:8000/v1")
    (tmp_path / "account" / "token").write_text("old")
    text = fails("kubernetes://llm:8000/v1")
    assert "replied 401" in text
    assert "old" not in text
    (tmp_path / "account" / "token").unlink()
    assert "service account in" in fails("kubernetes://llm:8000/v1")


def test_an_invalid_list_of_the_cluster_is_an_error(api: Api) -> None:
    api.slices = [{"addressType": "IPv4", "endpoints": [{"addresses": "127.0.0.2"}]}]
    assert "sent an invalid list" in fails("kubernetes://llm:8000/v1")


def test_outside_a_cluster_the_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "KUBERNETES_SERVICE_HOST is not set" in fails("kubernetes://llm:8000/v1")


def test_a_pod_that_stops_gets_no_new_requests(api: Api) -> None:
    with faulty(lambda _: (HEAD, piece("Good day", "stop"), DONE)) as server:
        port = int(server.url.removesuffix("/v1").rpartition(":")[2])
        api.slices = [endpoints(port, ("127.0.0.1", READY))]
        options = {"discovery_interval": 0.02, "slow_start": 0}
        with asking(upstreams=[f"kubernetes://llm:{port}/v1"], **options) as asked:
            assert text_of(asked.ask(prompt())) == "Good day"
            api.slices = [endpoints(port, ("127.0.0.1", STOPPING))]
            asked.until(lambda: "is draining" in asked.model.unready)
            assert "is draining" in asked.fails(prompt())
            api.slices = [endpoints(port, ("127.0.0.1", READY))]
            asked.until(lambda: not asked.model.unready)


# --- files ----------------------------------------------------------------------------------------


def test_wrong_lines_of_a_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "upstreams"
    for text, problem in (
        ("http://a/v1\nhttp://b,weight=x", "line 2: the weight of an upstream is 'x'"),
        ("dns://a:1/v1", "line 1: expected http or https"),
        ("x" * (1 << 21), "has more than 1048576 bytes"),
    ):
        path.write_text(text)
        assert problem in fails(f"file://{path}")
    path.unlink()
    assert "No such file" in fails(f"file://{path}")


def test_a_source_of_too_many_upstreams_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "upstreams"
    path.write_text("".join(f"http://host{i}/v1\n" for i in range(1001)))
    assert "names 1001 upstreams, expected at most 1000" in fails(f"file://{path}")


def test_a_discovered_upstream_that_refuses_the_key_is_unready(
    tmp_path: Path,
) -> None:
    with faulty(lambda _: ()) as server:
        server.models = lambda: whole(401, {"error": "who?"})
        path = tmp_path / "upstreams"
        path.write_text(server.url)
        with asking(upstreams=[f"file://{path}"]) as asked:
            assert "refuses the key (401)" in asked.model.unready


def test_the_certificate_of_a_resolved_address_is_for_the_name(
    addresses: list[str], tmp_path: Path
) -> None:
    addresses.append("127.0.0.1")
    authority = Authority(tmp_path, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("upstream", hosts=["fleet.test"]))
    with answering(context) as port:
        url = f"dns+https://fleet.test:{port}/v1"
        with asking(upstreams=[url], tls_ca=authority.ca) as asked:
            assert asked.model.unready == ""
            assert text_of(asked.ask(prompt())) == "Good day"
        context.load_cert_chain(*authority.issue("other", hosts=["other.test"]))
        with asking(upstreams=[url], tls_ca=authority.ca) as asked:
            assert "Hostname mismatch" in asked.model.unready
