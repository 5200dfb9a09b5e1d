"""Real servers for tests: in this process or as a user's script; ports, servables, /proc, polling.

A test never sleeps: it waits on a condition by `eventually`.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspore_serving import server
from mindspore_serving.client import Client
from tests.declaring import METHOD
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
COMMON = ("api_keys", "allow_loading", "client_shared_memory", "front_ends")
HEADER = f"""
import os, time
import numpy as np
from mindspore_serving.server import register
{METHOD}"""


def write_servable(directory: Path, name: str, source: str, versions: Sequence[int] = ()) -> None:
    """servable_config.py of `source` below HEADER, and empty version directories."""
    for version in versions:
        (directory / name / str(version)).mkdir(parents=True)
    (directory / name).mkdir(exist_ok=True)
    (directory / name / "servable_config.py").write_text(HEADER + source)


# --- processes ----------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Direct children, zombies too."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # as the kernel was built
        return _children_among_all(pid)
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.extend(map(int, path.read_text().split()))
    return found


def _children_among_all(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int(_stat(int(entry.name))[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def workers(pid: int) -> list[int]:
    """The worker processes of the server `pid`."""
    return [child for child in children(pid) if is_worker(child)]


def is_worker(pid: int) -> bool:
    return b"mindspore_serving.worker" in _command(pid)


def front_ends(pid: int) -> list[int]:
    """The front-end processes of the server `pid`, the first one first."""
    found = [child for child in children(pid) if b"server.processes" in _command(child)]
    return sorted(found, key=_command)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def zombies(pid: int) -> list[int]:
    return [child for child in children(pid) if not is_alive(child)]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid: int) -> int:
    """Resident bytes, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_growth(pids: Sequence[int], run: Callable[[], object], most: int) -> None:
    """Fail if `run` makes one of `pids` grow by `most` bytes each time: once is chance (what
    overlaps, which shapes kernels are made for, what malloc keeps), and a leak is not."""
    for _ in range(5):
        before = [memory(pid) for pid in pids]
        run()
        after = [memory(pid) for pid in pids]
        if all(now - was < most for was, now in zip(before, after, strict=True)):
            return
    grown = {
        pid: f"{was >> 20} to {now >> 20}"
        for pid, was, now in zip(pids, before, after, strict=True)
    }
    raise AssertionError(f"memory grows again and again, in MB: {grown}")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- servers ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Calls:
    """How to call the server at `grpc` ("ip:port" or "unix:path") and on the HTTP port `http` of
    `host`."""

    grpc: str
    http: int
    host: str = "127.0.0.1"
    clients: list[Any] = field(default_factory=list)  # closed at the end

    def client(self, servable: str, method: str, version: int = 0, **options: Any) -> Client:
        options.setdefault("timeout", PATIENCE)  # a test must fail, not hang
        client = Client(self.grpc, servable, method, version, **options)
        self.clients.append(client)
        return client

    def connect(self) -> socket.socket:
        """A connection to the HTTP port; closed at the end, if not before."""
        stream = socket.create_connection(("127.0.0.1", self.http), timeout=PATIENCE)
        self.clients.append(stream)
        return stream

    def close(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def post(
        self, servable: str, method: str, instances: Any, headers: dict[str, str] | None = None
    ) -> Any:
        """The body of the answer, as it came."""
        body = json.dumps({"instances": instances})
        return json.loads(self.http_call("POST", f"/model/{servable}:{method}", body, headers)[1])

    def http_call(
        self,
        verb: str,
        path: str,
        body: "str | bytes | None" = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.http, timeout=PATIENCE)
        try:
            connection.request(verb, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def send(self, data: bytes, seconds: float = PATIENCE) -> bytes:
        """All that the HTTP port answers to `data` until it closes the connection or is silent."""
        with socket.create_connection(("127.0.0.1", self.http), timeout=seconds) as stream:
            answer = b""
            try:
                stream.sendall(data)
                while chunk := stream.recv(1 << 16):
                    answer += chunk
            except (TimeoutError, ConnectionError):
                pass
            return answer


@contextmanager
def serving(
    directory: Path, *configs: "server.ServableStartConfig", limit: int = 100, **http: Any
) -> Iterator[Calls]:
    """A server in this process, with `directory` as working directory; stopped at the end.

    `limit` is max_msg_mb_size of both front ends, `http` more options of the RESTful one, of which
    those in COMMON are also the other's.
    """
    calls = Calls(f"127.0.0.1:{free_port()}", free_port())
    common = {name: http[name] for name in COMMON if name in http}
    old = os.getcwd()
    os.chdir(directory)
    try:
        server.start_servables(configs)
        server.start_grpc_server(calls.grpc, limit, **common)
        server.start_restful_server(f"127.0.0.1:{calls.http}", limit, **http)
        yield calls
    finally:
        calls.close()
        server.stop()
        os.chdir(old)


def config(directory: Path, name: str, **options: Any) -> "server.ServableStartConfig":
    """One worker, if `options` do not say otherwise."""
    if "device_ids" not in options:
        options.setdefault("num_parallel_workers", 1)
    return server.ServableStartConfig(str(directory), name, **options)


class Script:
    """A user's start-up script as a process; `lines` is what it printed."""

    def __init__(self, path: Path, environment: dict[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            cwd=path.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(self.process.stdout or ())

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def says(self, words: str, seconds: float = PATIENCE) -> None:
        """Wait until it has printed `words`."""

        def look() -> bool:
            if words not in self.text and self.process.poll() is not None:
                self._reader.join(PATIENCE)
                assert words in self.text, f"it ended: {self.process.returncode}\n{self.text}"
            return words in self.text

        eventually(look, seconds, f"{words!r} in\n{self.text}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self, seconds: float = PATIENCE) -> int:
        """The exit status, once it has ended."""
        status = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return status

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        if self.process.stdout:
            self.process.stdout.close()


def row_of(calls: Calls, servable: str) -> dict[str, Any]:
    """What /servables says of it."""
    rows = json.loads(calls.http_call("GET", "/servables")[1])["servables"]
    return next(row for row in rows if row["name"] == servable)


def engine_of(calls: Calls, servable: str) -> Counter[str]:
    """The numbers of its engine, which are 0 before it has told the first."""
    return Counter(row_of(calls, servable).get("engine", {}))


def is_idle(calls: Calls, servable: str) -> bool:
    """Whether nothing of any request is left in the server and its engine."""
    row = row_of(calls, servable)
    numbers, requests = Counter(row.get("engine", {})), row["requests"]
    is_free = numbers["num_free_blocks"] == numbers["num_blocks"]
    in_engine = numbers["num_running"] + numbers["num_waiting"]
    return is_free and in_engine + requests["running"] + requests["waiting"] == 0


def in_flight(calls: Calls) -> float:
    """How many requests the server has not answered."""
    text = calls.http_call("GET", "/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith("serving_requests_in_flight ")]
    return float(lines[0].split()[-1])


def is_late(error: str) -> bool:
    """Server and client look at the clock at the same time; either may tell."""
    return "(4, 'deadline exceeded')" in error or "no answer within 0." in error


def both_errors(calls: Calls, method: str, instances: object, servable: str = "toy") -> list[str]:
    """The error texts by gRPC and by REST of a request that fails as a whole."""
    by_grpc = calls.client(servable, method).infer(instances)
    by_rest = calls.post(servable, method, instances)
    assert set(by_grpc) == {"error"}
    assert set(by_rest) == {"error_msg"}
    return [by_grpc["error"], by_rest["error_msg"]]
