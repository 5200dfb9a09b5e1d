"""`mindspore-serving bench` with real servers, and with one that fails in known ways."""

import asyncio
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving.cli import bench, bench_load, bench_profiles, bench_protocols
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, Target
from mindspore_serving.cli.bench_prompts import BenchPrompt
from mindspore_serving.cli.bench_protocols import Dialect
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.errors import ServingError
from tests.cli.commands import SERVING, call, run
from tests.cli.talking import MODEL, Talking, talking
from tests.ports import free_port
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.e2e
BENCH = [*SERVING, "bench"]
SHORT = ["--input-tokens", "40", "--output-tokens", "8", "--requests", "9"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    with talking(tmp_path_factory.mktemp("talking")) as running:
        yield running


def runs(words: list[str], directory: Path) -> list[dict]:
    """The rows of the JSON, of a run in which nothing failed."""
    done = run([*BENCH, *words, "--json", "results.json"], directory)
    assert done.returncode == 0, done.stderr
    found = json.loads((directory / "results.json").read_text())
    assert len(done.stdout.splitlines()) == 2 + len(found["runs"])
    rows: list[dict] = found["runs"]
    return rows


@pytest.mark.torch
@pytest.mark.parametrize("protocol", ["chat", "completions", "tgi"])
def test_every_protocol_measures_the_same_work(server, protocol: str, tmp_path: Path) -> None:
    words = [server.url, "--protocol", protocol, "--concurrency", "1,4", *SHORT]
    one, four = runs(words, tmp_path)
    assert (one["load"], four["load"]) == ("1 client", "4 clients")
    for row in (one, four):
        assert (row["requests"], row["answered"]) == (9, 9)
        assert row["generated_tokens"] == 9 * 8
        # a word more or less, and the template's tokens, are all that it may be off by
        assert row["prompt_tokens"] / 9 == pytest.approx(40, rel=0.2)
        first, whole = row["first_token_ms"], row["whole_ms"]
        assert 0 < first["p50"] <= first["p90"] <= first["p99"] <= first["max"]
        assert first["p50"] < whole["p50"]
        assert row["tokens_per_second"] == pytest.approx(72 / row["seconds"])


@pytest.mark.torch
def test_a_shared_beginning_is_found_in_the_servers_cache(server, tmp_path: Path) -> None:
    words = [server.url, "--concurrency", "1", "--requests", "6", "--output-tokens", "2"]
    words += ["--input-tokens", "300", "--seed", "7"]
    (alone,) = runs(words, tmp_path)
    (shared,) = runs([*words, "--shared-prefix", "200"], tmp_path)
    assert "were in the server's cache" in run([*BENCH, *words], tmp_path).stderr  # the same again
    assert alone["cached_tokens"] < 0.2 * alone["prompt_tokens"]
    assert shared["cached_tokens"] > 0.4 * shared["prompt_tokens"]


@pytest.mark.torch
def test_a_sweep_is_drawn(server, tmp_path: Path) -> None:
    words = [server.url, "--profile", "sweep", "--requests", "4", "--chart", "out.html"]
    rows = runs([*words, "--input-tokens", "10", "--output-tokens", "2"], tmp_path)
    assert [row["load"] for row in rows[:2]] == ["1 client", "4 at once"]
    assert all(row["load"].endswith("req/s") for row in rows[2:])
    page = (tmp_path / "out.html").read_text()
    # a busy client may get both tokens of every answer at once
    has_gaps = any(row["between_pieces_ms"] and row["between_pieces_ms"]["p99"] for row in rows)
    assert ("Time between pieces" in page) == has_gaps
    assert page.count("<figure>") == 4 + has_gaps
    assert "p50 4 at once" in page


@pytest.mark.torch
def test_two_servers_are_compared(server, tmp_path: Path) -> None:
    words = [server.url, "--compare", server.url, "--concurrency", "1,2", "--requests", "6"]
    words += ["--input-tokens", "10", "--output-tokens", "4", "--json", "results.json"]
    done = run([*BENCH, *words], tmp_path)
    assert done.returncode == 0
    assert f"A: {server.url}\nB: {server.url}\n" in done.stdout
    found = json.loads((tmp_path / "results.json").read_text())
    rows = [(row["load"], row["answered"], row["generated_tokens"]) for row in found["runs"]]
    loads = ["1 client, A", "1 client, B", "2 clients, A", "2 clients, B"]
    assert rows == [(load, 6, 24) for load in loads]
    for one in found["ratios"]:
        assert 0 < one["low"] <= one["ratio"] <= one["high"]
        assert one["verdict"] == "too few pairs"
        assert one["verdict"] in done.stdout
    # "per token" has none of the pairs in which all tokens came at once
    all_pairs = [one["time"] for one in found["ratios"] if one["num_pairs"] == 6]
    assert [one for one in all_pairs if one != "per token"] == ["first token", "whole answer"] * 2


@pytest.mark.torch
def test_a_rate_is_kept_and_prompts_come_from_a_file(server, tmp_path: Path) -> None:
    lines = [{"prompt": "one two", "max_tokens": 3}, {"prompt": "three"}]
    (tmp_path / "prompts").write_text("\n".join(map(json.dumps, lines)))
    words = [server.url, "--rate", "20", "--requests", "20", "--output-tokens", "5"]
    (row,) = runs([*words, "--prompts", "prompts"], tmp_path)
    assert row["load"] == "20 req/s"
    assert row["generated_tokens"] == 10 * 3 + 10 * 5
    assert row["seconds"] > bench_load.poisson(20, 20, seed=0)[-1]
    assert row["late_ms"]["p50"] >= 0


def test_a_classic_method_is_measured_by_its_url(served, tmp_path: Path) -> None:
    (tmp_path / "body").write_text('{"instances": [{"x": 1.5}]}')
    url = f"{served.url}/model/words:double"
    (row,) = runs([url, "--body", "body", "--concurrency", "4", "--requests", "40"], tmp_path)
    assert row["answered"] == 40
    assert row["first_token_ms"] is None
    assert 0 < row["whole_ms"]["p50"] <= row["whole_ms"]["p99"]


def test_failed_instances_are_counted_and_make_the_status_1(served, tmp_path: Path) -> None:
    (tmp_path / "body").write_text('{"instances": [{"left": "fail", "right": "b"}]}')
    done = call(["bench", f"{served.url}/model/words:joined", "--body", "body"], tmp_path)
    assert done.returncode == 1
    assert "asked to fail" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--input-tokens", "0"], "--input-tokens is 0, expected an int >= 1"),
        (["--concurrency", "4,0"], "--concurrency 0: expected 1 or more"),
        (["--rate", "0"], "--rate 0.0: expected requests per second"),
        (["--spread", "3"], "--spread is 3.0, expected a number from 0 to 2"),
        (["--shared-prefix", "256"], "--shared-prefix 256: expected less than --input-tokens 256"),
        (["--protocol", "classic"], "--body FILE"),
        ([], "nothing listens at"),
    ],
)
def test_wrong_urls_and_models_are_errors_of_a_line(
    words: list[str], told: str, tmp_path: Path
) -> None:
    done = call(["bench", f"http://127.0.0.1:{free_port()}", *words], tmp_path)
    assert done.returncode == (1 if "nothing listens" in told else 2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.torch
def test_an_unknown_model_and_a_wrong_file_are_said_in_a_line(server, tmp_path: Path) -> None:
    done = call(["bench", server.url, "--model", "other"], tmp_path)
    assert (done.returncode, MODEL in done.stderr) == (1, True)
    (tmp_path / "prompts").write_text('{"prompt": 5}\n')
    done = call(["bench", server.url, "--prompts", "prompts"], tmp_path)
    assert done.stderr.startswith("mindspore-serving: line 1: expected")


# --- a server with faults -----------------------------------------------------------------------

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%b}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
GOOD = EVENT % b"null" + EVENT % b'"stop"'
BASE = b'{"error": "the model has no chat template: x"}'
ANSWERS = {
    "good": HEAD % len(GOOD) + GOOD,
    "busy": b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull",
    "cut": HEAD % 500 + EVENT % b"null",
    "early": HEAD % len(EVENT % b"null") + EVENT % b"null",
    "odd": HEAD % 15 + b"data: <html>\n\n\n",
    "base": b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(BASE) + BASE,
    "noise": b"ssh-2.0 no HTTP\r\n\r\n",
}


class Faulty(socketserver.StreamRequestHandler):
    """Answers by the words of the prompt; "cut" and "noise" hang up, "silent" says nothing."""

    def handle(self) -> None:
        while head := self.rfile.readline():
            length = 0
            while (line := self.rfile.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert head.startswith(b"POST")
            word = json.loads(self.rfile.read(length))["prompt"]
            if word == "silent":
                self.rfile.read(1)  # until the client hangs up
                return
            self.wfile.write(ANSWERS[word])
            if word in ("cut", "noise"):
                return


class Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True
    connections = ended = 0

    def shutdown_request(self, request):
        self.ended += 1
        super().shutdown_request(request)

    def get_request(self):
        self.connections += 1
        return super().get_request()


@pytest.fixture
def faulty() -> Iterator[Threads]:
    with Threads(("127.0.0.1", 0), Faulty) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def target(port: int, timeout: float = PATIENCE) -> Target:
    url = f"http://127.0.0.1:{port}"
    connections = Connections(to_endpoint(url, BenchSettings(url)))
    return Target(connections, bench_protocols.completions("m", stop_at_end=True), timeout)


def ask(to: Target, words: list[str], clients: int = 1) -> BenchRun:
    async def work() -> BenchRun:
        prompts = (BenchPrompt(word, 5) for word in words)
        try:
            return await bench_load.by_clients(to, prompts, clients, len(words), lambda _: None)
        finally:
            to.connections.close()

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("busy", "status 429"),
        ("cut", "disconnected"),
        ("early", "failed answer"),
        ("odd", "bad answer"),
        ("noise", "bad answer"),
        ("silent", "timeout"),
    ],
)
def test_a_failure_is_counted_by_its_kind_and_the_next_request_is_answered(
    faulty: Threads, word: str, kind: str
) -> None:
    timeout = 1 if word == "silent" else PATIENCE
    found = ask(target(faulty.server_address[1], timeout), [word, "good"])
    failed, good = found.outcomes
    assert failed.failure[0] == kind
    assert failed.answer is None
    assert good.answer is not None
    assert len(good.answer.times) == 2


def test_a_model_without_chat_template_is_measured_by_completions(faulty: Threads) -> None:
    async def probe() -> None:
        to = target(faulty.server_address[1])
        try:
            await bench._probe(to, BenchPrompt("base", 1))
        finally:
            to.connections.close()

    with pytest.raises(ServingError, match="template: x; to measure it write --protocol compl"):
        asyncio.run(probe())


def test_a_measurement_that_cannot_begin_closes_its_connections(
    faulty: Threads, tmp_path: Path
) -> None:
    """The end of uvloop may wait for a connection that is open until the server closes it."""
    (tmp_path / "prompts").write_text('{"prompt": "busy"}\n')
    to = target(faulty.server_address[1])
    settings = BenchSettings(to.connections.url, prompts=str(tmp_path / "prompts"))

    async def fail() -> None:
        mix = bench_profiles.mix(settings)
        with pytest.raises(ServingError, match="status 429 full"):
            await bench._measure(settings, mix, [to], on_runs=lambda _: None)
        await until(lambda: faulty.ended)

    asyncio.run(fail())


def test_connections_are_used_again_and_no_more_than_clients(faulty: Threads) -> None:
    found = ask(target(faulty.server_address[1]), ["good"] * 50, clients=3)
    assert [one.answer is not None for one in found.outcomes] == [True] * 50
    assert faulty.connections <= 3


def test_after_the_seconds_of_a_run_clients_send_no_second_request(faulty: Threads) -> None:
    async def work() -> BenchRun:
        to = target(faulty.server_address[1])
        prompts = (BenchPrompt("good", 5) for _ in range(99))
        try:
            return await bench_load.by_clients(to, prompts, 3, 99, lambda _: None, seconds=0)
        finally:
            to.connections.close()

    assert [one.answer is not None for one in asyncio.run(work()).outcomes] == [True] * 3


def test_a_refused_connection_is_counted_as_a_failure() -> None:
    found = ask(target(free_port()), ["good"])
    assert found.outcomes[0].failure[0] == "no connection"


def test_latencies_count_from_when_a_request_was_due(faulty: Threads) -> None:
    """A client that is held up for 0.3 s must not make the server look faster."""

    async def work() -> list[BenchOutcome]:
        to = target(faulty.server_address[1])
        arrivals = [0.0, 0.1, 0.2, 0.3]
        done = await bench_load.at_times(to, held_up(0.3), arrivals, "", lambda _: None)
        to.connections.close()
        return sorted(done.outcomes, key=lambda one: one.due)

    _, held, *_ = asyncio.run(work())
    assert held.sent - held.due >= 0.3
    assert held.ended - held.due >= 0.3


def held_up(seconds: float) -> Iterator[BenchPrompt]:
    """Four prompts, before the second of which nothing else runs for `seconds`."""
    for number in range(4):
        if number == 1:
            threading.Event().wait(seconds)
        yield BenchPrompt("good", 5)


def test_a_classic_dialect_sends_its_body_unchanged() -> None:
    dialect: Dialect = bench_protocols.classic("/model/a:b", b"{ }")
    assert (dialect.path, dialect.to_body(BenchPrompt("", 1))) == ("/model/a:b", b"{ }")
