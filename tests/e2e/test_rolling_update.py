"""Two servers of ours behind haproxy, with the configuration of deploy/: restarted in turn under
load, then one is killed."""

import http.client
import json
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mindspore_serving.client import Client
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import ROOT, Calls, eventually, is_alive, workers, write_servable
from tests.frontends.state.postgres import PLACES, serving_postgres
from tests.ports import free_port
from tests.waiting import PATIENCE

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [
    pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian: haproxy)"),
    pytest.mark.slow,
]
HOSTS = {"10.0.0.1": "127.0.0.2", "10.0.0.2": "127.0.0.3"}  # of the configuration, and here
SOURCE = """
@method("y", "pid")
def double(x):
    time.sleep(0.01)
    return x * 2, os.getppid()
"""
NUM_CLIENTS = 3  # of each protocol


@dataclass(slots=True)
class Behind:
    """The servers behind two processes of haproxy, on `port` and, without retries, on `strict`."""

    directory: Path
    port: int
    strict: int
    ports: dict[str, int]
    state: str = ""
    stack: ExitStack = field(default_factory=ExitStack)
    servers: dict[str, Command] = field(default_factory=dict)

    def start(self, host: str) -> None:
        words = [*SERVING, "serve", "toy", "--host", host, "--port", str(self.ports[host])]
        words += ["--shutdown-delay", "1.5", "--num-parallel-workers", "1", "--insecure"]
        words += ["--state", self.state] if self.state else []
        self.servers[host] = self.stack.enter_context(Command(words, self.directory))

    def start_proxy(self, port: int) -> None:
        (self.directory / f"{port}.cfg").write_text(configuration(self, port))
        words = [str(HAPROXY), "-db", "-f", f"{port}.cfg"]
        proxy = self.stack.enter_context(Command(words, self.directory))
        eventually(lambda: accepts(port) or proxy.process.poll() is not None)
        assert accepts(port), proxy.text

    def wait(self) -> None:
        for server in self.servers.values():
            server.says("Ready after")


def configuration(behind: Behind, port: int) -> str:
    """Return the configuration of deploy/ for this machine, with checks ten times as often."""
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    replaced = {"127.0.0.1:8000": f"127.0.0.1:{port}", "inter 1s": "inter 100ms"}
    if port == behind.strict:
        replaced["retries 3"] = "retries 0"
    for host, here in HOSTS.items():
        replaced[f"{host}:1500"] = f"{here}:{behind.ports[here]}"
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    directory = tmp_path_factory.mktemp("behind")
    write_servable(directory, "toy", SOURCE)
    made = Behind(
        directory, free_port(), free_port(), {host: free_port() for host in HOSTS.values()}
    )
    with made.stack as stack:
        if PLACES:
            made.state = stack.enter_context(serving_postgres()).url
        for host in HOSTS.values():
            made.start(host)
        made.wait()
        for port in (made.port, made.strict):
            made.start_proxy(port)
        yield made


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except OSError:
        return False
    return True


class Load:
    """Clients over HTTP and gRPC, each with one connection; answers by protocol and server."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failures: list[str] = []
        self._port, self._is_over = port, threading.Event()
        targets = (self._call_http, self._call_grpc)
        self._threads = [
            threading.Thread(target=target) for target in targets for _ in range(NUM_CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _call_http(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)

        def call() -> int:
            try:
                connection.request("POST", "/model/toy:double", '{"instances": [{"x": 2}]}')
                reply = connection.getresponse()
                answer = json.loads(reply.read())
                assert reply.status == 200, answer
            except BaseException:
                connection.close()
                raise
            return int(answer["instances"][0]["pid"])

        self._repeat("http", call)
        connection.close()

    def _call_grpc(self) -> None:
        client = Client(f"127.0.0.1:{self._port}", "toy", "double", timeout=PATIENCE)

        def call() -> int:
            answer = client.infer([{"x": 2}])
            assert isinstance(answer, list), answer
            return int(answer[0]["pid"])

        self._repeat("grpc", call)
        client.close()

    def _repeat(self, protocol: str, call: Callable[[], int]) -> None:
        while not self._is_over.is_set():
            try:
                self.answers[protocol, call()] += 1
            except Exception as error:
                self.failures.append(f"{protocol}: {error!r}")
                self._is_over.wait(0.1)

    def wait(self, *pids: int) -> None:
        """Until the servers `pids` have answered more, over both protocols."""
        for pid in pids:
            for protocol in ("http", "grpc"):
                before = self.answers[protocol, pid]
                eventually(
                    lambda before=before, of=(protocol, pid): self.answers[of] > before + 3,  # type: ignore[misc]
                    what=f"{protocol} of {pid}, {self.answers}, {self.failures[:3]}",
                )

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@contextmanager
def load(port: int) -> Iterator[Load]:
    made = Load(port)
    try:
        yield made
    finally:
        made.end()


def pids(behind: Behind) -> list[int]:
    return [server.pid for server in behind.servers.values()]


def upload(calls: Calls) -> str:
    """The id of a new file."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n\r\n'
        b"--b--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    status, answer = calls.http_call("POST", "/v1/files", body, headers)
    assert status == 200, answer
    return str(json.loads(answer)["id"])


@pytest.mark.skipif(not PLACES, reason="PostgreSQL is not installed (Debian: postgresql)")
def test_stored_state_is_the_same_behind_the_balancer(behind: Behind) -> None:
    balanced = Calls("", behind.port)
    first, second = (Calls("", port, host=host) for host, port in behind.ports.items())
    path = f"/v1/files/{upload(balanced)}"
    for calls in (balanced, first, second):
        assert calls.http_call("GET", f"{path}/content") == (200, b"{}\n")
    assert first.http_call("DELETE", path)[0] == 200
    assert second.http_call("GET", path)[0] == 404


def test_a_rolling_update_fails_no_request(behind: Behind) -> None:
    with load(behind.port) as clients, load(behind.strict) as strict:
        clients.wait(*pids(behind))
        for host in HOSTS.values():
            (other,) = (server.pid for name, server in behind.servers.items() if name != host)
            old = behind.servers[host]
            old.send(signal.SIGTERM)
            assert old.status() == 0
            clients.wait(other)
            behind.start(host)
            behind.wait()
            clients.wait(*pids(behind))
            strict.wait(*pids(behind))
    assert clients.failures + strict.failures == []
    for each in (clients, strict):
        assert len({pid for _, pid in each.answers}) == 4


def test_a_killed_master_fails_no_request_but_those_in_flight(behind: Behind) -> None:
    host = HOSTS["10.0.0.1"]
    (other,) = (server.pid for name, server in behind.servers.items() if name != host)
    with load(behind.port) as clients:
        clients.wait(*pids(behind))
        killed = behind.servers[host]
        left = workers(killed.pid)
        assert len(left) == 1
        killed.send(signal.SIGKILL)
        killed.status()
        eventually(lambda: not any(map(is_alive, left)))
        clients.wait(other)
        behind.start(host)
        behind.wait()
        clients.wait(*pids(behind))
    assert len(clients.failures) <= 2 * NUM_CLIENTS, clients.failures
