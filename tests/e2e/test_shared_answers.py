"""Servers that share answers: by the same files, while the store works, and when it does not."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("redis")
pytest.importorskip("zstandard")

from mindspore_serving.stores.redis_store import PASSWORD
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import workers, write_servable
from tests.ports import free_port
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import PATIENCE, eventually

STORE = "serving_cache_store_total"
SOURCE = """
with open(os.path.join(os.path.dirname(__file__), "factor.txt")) as file:
    FACTOR = int(file.read())

@method("y")
def predict(x):
    return x * FACTOR
"""


class Server(Command):
    """A server of the servable "toy", which multiplies by the number in a file."""

    def __init__(self, directory: Path, factor: int, *words: str) -> None:
        directory.mkdir()
        write_servable(directory, "toy", SOURCE)
        self.factor = directory / "toy" / "factor.txt"
        self.factor.write_text(str(factor))
        self.port = free_port()
        options = ["--http-port", str(self.port), "--no-grpc", "--cache-mb", "8", *words]
        super().__init__([*SERVING, "serve", str(directory / "toy"), *options], directory)

    def ask(self, x: int) -> tuple[int, str | None]:
        body = json.dumps({"instances": [{"x": x}]}).encode()
        url = f"http://127.0.0.1:{self.port}/model/toy:predict"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE) as answer:
            return json.loads(answer.read())["instances"][0]["y"], answer.headers["x-cache"]

    def count(self, metric: str, result: str) -> float | None:
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        shown = [line for line in lines if line.startswith(metric) and f'"{result}"' in line]
        return float(shown[0].rpartition(" ")[2]) if shown else None


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[object, ...]]:
    directory = tmp_path_factory.mktemp("shared")
    (directory / "key").write_text("of all servers, and of nobody else")
    with ExitStack() as stack:
        os.environ[PASSWORD] = key_value_server.PASSWORD
        stack.callback(os.environ.pop, PASSWORD)
        store = stack.enter_context(KeyValueServer(directory))
        words = ["--cache-store", store.url, "--cache-store-key", str(directory / "key")]
        started = [
            stack.enter_context(
                Server(directory / name, factor, *words, "--cache-store-timeout", timeout)
            )
            for name, factor, timeout in (("a", 2, "3"), ("b", 2, "60"), ("other", 3, "60"))
        ]
        for server in started:
            server.says("Ctrl-C stops")
            eventually(lambda server=server: server.count(STORE, "hit") is not None)
        yield store, *started


def test_an_answer_is_a_hit_on_a_server_of_the_same_files_alone(servers):
    store, first, second, other = servers
    assert first.ask(1) == (2, "miss")
    eventually(lambda: first.count(STORE, "written"))
    assert [second.ask(1) for _ in range(2)] == [(2, "hit-store"), (2, "hit")]
    assert other.ask(1) == (3, "miss")
    assert second.count("serving_cache_requests_total", "hit_store") == 1
    assert second.count("serving_cache_requests_total", "hit") == 1
    assert second.count(STORE, "hit") == 1
    values = b"".join(filter(None, map(store.client.get, store.client.keys("*"))))
    assert values.count(b"MSAN001") == 2


def test_files_that_change_under_a_server_end_its_sharing(servers):
    _, first, second, other = servers
    other.factor.write_text("4")
    os.kill(workers(other.pid)[0], signal.SIGKILL)
    other.says("files of servable toy have changed while it is served")
    assert other.count(STORE, "hit") is None
    assert other.ask(5) == (20, "miss")
    assert first.ask(5) == (10, "miss")
    eventually(lambda: second.ask(5) == (10, "hit"))  # after the answer is in the store


def test_a_stopped_and_a_killed_store_fail_no_request(servers):
    store, first, second, _ = servers
    store.stop()
    assert first.ask(7) == (14, "miss")
    assert first.ask(7) == (14, "hit")
    first.says("an answer cannot be read")
    store.process.kill()
    store.process.wait(PATIENCE)
    assert second.ask(7) == (14, "miss")
    assert second.ask(8) == (16, "miss")
    second.says("an answer cannot be read")
