"""Lines of `bench` as they come, with a server that answers when the test lets it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, Command
from tests.cli.terminal import Terminal
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e
FREE = 3  # a request before the measurement, and the two of the first load


class Gate(ThreadingHTTPServer):
    """Server of a classic method that answers `FREE` requests, and further ones when opened."""

    daemon_threads = True

    def __init__(self) -> None:
        self.count = 0
        self.open = threading.Event()
        super().__init__(("127.0.0.1", 0), Guarded)


class Guarded(BaseHTTPRequestHandler):
    """Answers of the gate."""

    server: Gate
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.count += 1
        if self.server.count > FREE:
            self.server.open.wait(PATIENCE)
        body = json.dumps({"instances": [{"y": 1}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.open.set()
        made.shutdown()
        thread.join()


@pytest.fixture
def words(gate: Gate, tmp_path: Path) -> list[str]:
    (tmp_path / "body").write_text('{"instances": [{"x": 1}]}')
    url = f"http://127.0.0.1:{gate.server_port}/model/toy:same"
    loads = ["--concurrency", "1,2", "--requests", "2"]
    return [*SERVING, "bench", url, "--body", str(tmp_path / "body"), *loads]


def test_a_pipe_gets_the_line_of_a_load_before_the_next_load_ends(gate, words, tmp_path) -> None:
    with Command(words, tmp_path) as command:
        command.says("1 client ")
        assert [line.split()[0] for line in command.lines if line.strip()] == ["whole", "load", "1"]
        assert not any("%|" in line for line in command.lines)
        gate.open.set()
        command.says("2 clients ")


def test_a_terminal_gets_a_bar_while_a_load_runs(gate, words, tmp_path) -> None:
    with Terminal(words, tmp_path, columns=100) as terminal:
        terminal.shows("req/s", "1 client", "2 clients:   0%|")
        gate.open.set()
        terminal.shows("2 clients  ")
        assert terminal.process.wait(PATIENCE) == 0
