"""Servers that count the limits of a key together, and a budget that survives a restart."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("redis")

from mindspore_serving.stores.redis_store import PASSWORD
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import write_servable
from tests.ports import free_port
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import PATIENCE, eventually

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
KEYS = """
keys:
  - {name: day, key: key-of-a-day, tokens_per_day: 10}
  - {name: few, key: key-of-few-requests, requests_per_minute: 20}
  - {name: root, key: key-of-the-operator, operator: true}
weights: {toy: 1}
"""
DAY, FEW, ROOT = "key-of-a-day", "key-of-few-requests", "key-of-the-operator"


class Server(Command):
    """A server of the servable "toy", an instance of which costs a token."""

    def __init__(self, directory: Path, *words: str) -> None:
        write_servable(directory, "toy", SOURCE)
        keys = directory / "keys.yaml"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        self.port = free_port()
        options = ["--http-port", str(self.port), "--no-grpc", "--api-key-file", str(keys), *words]
        super().__init__([*SERVING, "serve", str(directory / "toy"), *options], directory)

    def get(self, path: str, key: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read()

    def use(self, key: str, count: int) -> int:
        """Send a request of `count` instances; return the status of the answer."""
        try:
            self.get("/model/toy:double", key, {"instances": [{"x": 1}] * count})
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def left(self, name: str) -> int:
        rows = {row["key"]: row for row in json.loads(self.get("/usage", ROOT))["keys"]}
        return rows[name]["limits"][0]["remaining"]

    def count(self, result: str) -> float:
        lines = self.get("/metrics", ROOT).decode().splitlines()
        name = f'serving_limits_exchanges_total{{result="{result}"}}'
        (line,) = [line for line in lines if line.startswith(name)]
        return float(line.rpartition(" ")[2])


def test_servers_count_together_and_alone_while_the_store_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv(PASSWORD, key_value_server.PASSWORD)
    with (
        KeyValueServer(tmp_path) as store,
        Server(tmp_path, "--limits-store", store.url) as first,
        Server(tmp_path, "--limits-store", store.url) as second,
    ):
        first.says("Ctrl-C stops")
        second.says("Ctrl-C stops")
        assert first.use(DAY, 4) == 200
        eventually(lambda: second.left("day") == 6)
        assert second.use(DAY, 6) == 200
        eventually(lambda: first.use(DAY, 1) == 429)
        for _ in range(10):
            assert first.use(FEW, 1) == 200
        eventually(lambda: second.left("few") <= 20 - 10)
        with Server(tmp_path, "--limits-store", store.url) as third:  # as after a restart
            third.says("Ctrl-C stops")
            assert third.use(DAY, 1) == 429
        store.process.kill()
        store.process.wait(PATIENCE)
        first.says("limits are counted by this server alone")
        assert first.use(DAY, 1) == 429
        assert first.use(FEW, 1) == 200
        assert first.count("failed") >= 1
        assert first.count("ok") >= 1


def test_a_budget_survives_a_restart_by_the_state_of_a_server(tmp_path):
    for _ in range(2):
        with Server(tmp_path, "--state", str(tmp_path / "state")) as server:
            server.says("Ctrl-C stops")
            left = server.left("day")
            assert server.use(DAY, 6) == (200 if left > 0 else 429)
            server.process.terminate()
            server.status()
    assert left == 4


def test_a_store_that_cannot_count_is_refused_at_the_start(tmp_path):
    with Server(tmp_path, "--limits-store", f"file://{tmp_path}") as server:
        assert server.status() != 0
        assert "limits_store is of a store that has no counters" in server.text
