"""A fleet of two servers of ours behind a third: one is stopped, killed and started again under
load, and then both are."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SERVING, Command, call
from tests.e2e.harness import Calls, eventually, is_alive, row_of, workers
from tests.llm import chatty
from tests.ports import free_port
from tests.waiting import PATIENCE

HOSTS = ("127.0.0.2", "127.0.0.3")
NUM_CLIENTS = 6
FRONT = (
    "--name=big", "--no-grpc", "--max-model-len=60000",
    "--engine-option=dialect=ours", "--engine-option=health_interval=0.1",
    "--engine-option=connect_timeout=1.5", "--engine-option=slow_start=0.5",
    "--engine-option=circuit_timeout=0.2",
)  # fmt: skip


@dataclass(slots=True)
class Fleet:
    """The server in front, and those behind it by their hosts; a port each."""

    directory: Path
    front: Calls
    ports: dict[str, int]
    behind: dict[str, Command] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, host: str) -> None:
        words = [*SERVING, "serve", "chatty", "--host", host, "--no-grpc", "--llm-option=dtype=f32"]
        words += ["--http-port", str(self.ports[host]), "--llm-option=kv_cache_memory=67108864"]
        self.behind[host] = self.stack.enter_context(Command(words, self.directory))

    def kill(self, host: str) -> None:
        """SIGKILL to the master; its workers end by themselves."""
        command = self.behind.pop(host)
        left = workers(command.pid)
        assert left
        command.send(signal.SIGKILL)
        command.status()
        eventually(lambda: not any(map(is_alive, left)))

    def upstreams(self) -> dict[str, dict[str, Any]]:
        (worker,) = row_of(self.front, "big")["workers"]
        return {row["name"].split(":")[1].strip("/"): row for row in worker["upstreams"]}

    def wait_for(self, host: str, *states: str) -> None:
        eventually(lambda: self.upstreams()[host]["state"] in states, what=f"{host} {states}")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    chatty.build(directory, context=65_536)
    port, ports = free_port(), {host: free_port() for host in HOSTS}
    made = Fleet(directory, Calls("", port), ports)
    with made.stack as stack:
        for host in HOSTS:
            made.start(host)
        for command in made.behind.values():
            command.says("Ready after")
        urls = [f"--upstream=http://{host}:{ports[host]}/v1" for host in HOSTS]
        words = [*SERVING, "serve", *urls, *FRONT, "--http-port", str(port)]
        stack.enter_context(Command(words, directory)).says("Ready after")
        yield made


class Stream:
    """A streamed completion; `text` and `error` as far as it has been read."""

    def __init__(self, port: int, prompt: str, max_tokens: int) -> None:
        body = {"model": "big", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        body |= {"ignore_eos": True}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self.connection.request("POST", "/v1/completions", json.dumps(body))
        self.reply = self.connection.getresponse()
        self.num_chunks, self.error = 0, ""
        if self.reply.status != 200:
            self.error = f"{self.reply.status}: {self.reply.read().decode()}"

    def read(self) -> bool:
        """Read an event; False at the end."""
        while not self.error and (line := self.reply.readline()):
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                self.error = event["error"]["message"]
            else:
                self.num_chunks += bool(event["choices"])
            return True
        return False

    def close(self) -> None:
        self.reply.close()
        self.connection.close()


class Load:
    """Clients that send one short request after another until `end`."""

    def __init__(self, port: int) -> None:
        self.num_answers = 0
        self.failures: list[tuple[int, str]] = []  # chunks before it, and the error
        self._port, self._is_over = port, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[n]) for n in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            stream = Stream(self._port, f"Client {client} says {number}", 6)
            while stream.read():
                pass
            stream.close()
            if stream.error:
                self.failures.append((stream.num_chunks, stream.error))
            else:
                assert stream.num_chunks
                self.num_answers += 1

    def wait(self, count: int = 20) -> None:
        """Until so many more requests are answered."""
        target = self.num_answers + count
        eventually(lambda: self.num_answers >= target, what=f"{self.failures}")

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@contextmanager
def load(fleet: Fleet) -> Iterator[Load]:
    made = Load(fleet.front.http)
    try:
        made.wait()
        yield made
    finally:
        made.end()


def long_streams(fleet: Fleet) -> dict[str, Stream]:
    """An answer of many tokens on each upstream."""
    streams: dict[str, Stream] = {}
    for number in range(len(HOSTS)):
        before = fleet.upstreams()
        stream = Stream(fleet.front.http, f"Story {number}", 30_000)
        assert stream.read()

        def grown(before: dict[str, dict[str, Any]] = before) -> list[str]:
            now = fleet.upstreams()
            load = {name: row["outstanding"] - before[name]["outstanding"] for name, row in
                    now.items()}  # fmt: skip
            return [name for name, more in load.items() if more > 10_000]

        (host,) = eventually(grown)
        streams[host] = stream
    assert streams.keys() == set(HOSTS)
    return streams


def test_a_hung_upstream_costs_no_request_that_has_no_answer_yet(fleet: Fleet) -> None:
    first, second = HOSTS
    with load(fleet) as clients:
        eventually(lambda: all(row["requests"] for row in fleet.upstreams().values()))
        pid = fleet.behind[first].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            fleet.wait_for(first, "unready")
            clients.wait()
        finally:
            os.kill(pid, signal.SIGCONT)
        fleet.wait_for(first, "ready")
        before = fleet.upstreams()[first]["requests"]
        eventually(lambda: fleet.upstreams()[first]["requests"] > before)
    assert [failure for failure in clients.failures if not failure[0]] == []


def test_a_killed_upstream_costs_only_answers_that_have_begun(fleet: Fleet) -> None:
    first, second = HOSTS
    streams = long_streams(fleet)
    with load(fleet) as clients:
        fleet.kill(first)
        while streams[first].read():
            pass
        text = f"the upstream http://{first}:{fleet.ports[first]}: it closed the connection"
        assert text in streams[first].error
        assert streams[first].num_chunks
        fleet.wait_for(first, "unready")
        clients.wait()
        assert streams[second].read()
        assert not streams[second].error
        fleet.start(first)
        fleet.wait_for(first, "slow start", "ready")
        before = fleet.upstreams()[first]["requests"]
        eventually(lambda: fleet.upstreams()[first]["requests"] > before)
    for stream in streams.values():
        stream.close()
    assert [failure for failure in clients.failures if not failure[0]] == []
    assert all("the upstream" in text for _, text in clients.failures)


def test_metrics_and_status_show_each_upstream(fleet: Fleet) -> None:
    page = fleet.front.http_call("GET", "/metrics")[1].decode()
    for host in HOSTS:
        label = f'upstream="http://{host}:{fleet.ports[host]}"'
        lines = [line for line in page.splitlines() if label in line]
        names = {line.partition("{")[0] for line in lines}
        assert names == {
            "serving_upstream_state",
            "serving_upstream_requests_open",
            "serving_upstream_outstanding_tokens",
            "serving_upstream_requests_total",
            "serving_upstream_errors_total",
        }
        (count,) = (line for line in lines if line.startswith("serving_upstream_requests_total"))
        assert float(count.split()[-1]) > 0
    url = f"http://127.0.0.1:{fleet.front.http}"
    shown = call(["status", url], fleet.directory)
    assert shown.returncode == 0, shown.stderr
    for host in HOSTS:
        (line,) = (line for line in shown.stdout.splitlines() if host in line)
        assert " tokens, " in line


def test_without_any_upstream_errors_have_the_form_of_the_protocol(fleet: Fleet) -> None:
    for host in list(fleet.behind):
        fleet.kill(host)
    for host in HOSTS:
        fleet.wait_for(host, "unready")
    assert fleet.front.http_call("GET", "/readyz")[0] == 503
    chat = {"model": "big", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    for path, expected, kind in (
        ("/v1/chat/completions", 503, "server_error"),
        ("/v1/messages", 503, "api_error"),
    ):
        status, body = fleet.front.http_call("POST", path, json.dumps(chat))
        answer = json.loads(body)
        assert (status, answer["error"]["type"]) == (expected, kind)
        for host in HOSTS:
            assert f"http://{host}:{fleet.ports[host]}" in answer["error"]["message"]
