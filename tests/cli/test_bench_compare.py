"""Two servers compared: what is sent in which order, and what pairs of times show."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mindspore_serving.cli import bench_protocols
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_compare import alternate, lines, ratios, to_json
from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, Target
from mindspore_serving.cli.bench_profiles import LoadProfile
from mindspore_serving.cli.bench_prompts import BenchPrompt
from mindspore_serving.cli.bench_protocols import BenchAnswer
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.endpoint import to_endpoint
from tests.waiting import PATIENCE


def answered(first: float, whole: float, num_tokens: int = 5) -> BenchOutcome:
    answer = BenchAnswer([10 + first, 10 + whole], num_generated=num_tokens)
    return BenchOutcome(10.0, 10.0, 10 + whole, answer)


FAILED = BenchOutcome(10.0, 10.0, 11.0, None, ("timeout", ""))


def noisy(factor: float, seed: int) -> list[BenchOutcome]:
    """Sixty answers, each of its own length, `factor` as long as with 1 but for 5 % of noise."""
    lengths, noise = random.Random("lengths"), random.Random(seed)
    found = []
    for _ in range(60):
        length = lengths.uniform(1, 20) * factor * noise.lognormvariate(0, 0.05)
        found.append(answered(length / 10, length))
    return found


def runs(a: list[BenchOutcome], b: list[BenchOutcome]) -> tuple[BenchRun, BenchRun]:
    return BenchRun("1 client, A", a), BenchRun("1 client, B", b)


def test_a_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    a = [answered(1.0, 5.0), answered(2.0, 6.0)]
    b = [answered(2.0, 5.0), answered(16.0, 24.0)]
    first, per_token, whole = ratios(*runs(a, b), seed=0)
    assert (first.load, first.time, first.num_pairs) == ("1 client", "first token", 2)
    assert first.ratio == pytest.approx((2 * 8) ** 0.5)
    assert per_token.ratio == pytest.approx((3 / 4 * 8 / 4) ** 0.5)
    assert whole.ratio == pytest.approx((1 * 4) ** 0.5)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.2, "B is slower"), (1 / 1.2, "B is faster"), (1.0, None)]
)
def test_a_difference_is_found_through_noise_and_different_lengths(
    factor: float, verdict: str | None
) -> None:
    whole = ratios(*runs(noisy(1, seed=1), noisy(factor, seed=2)), seed=0)[-1]
    assert whole.low < factor < whole.high
    assert whole.high / whole.low < 1.1
    assert whole.verdict == (verdict or "no difference shown")
    assert whole.verdict in lines([whole])[-1]
    assert to_json([whole])[0]["verdict"] == whole.verdict


def test_the_same_seed_gives_the_same_interval() -> None:
    both = runs(noisy(1, seed=1), noisy(1, seed=2))
    assert ratios(*both, seed=3) == ratios(*both, seed=3)
    assert ratios(*both, seed=3) != ratios(*both, seed=4)


def test_failed_pairs_are_left_out_and_few_pairs_give_no_verdict() -> None:
    a = [FAILED, answered(1.0, 2.0), answered(1.0, 2.0)]
    b = [answered(9.0, 9.0), FAILED, answered(3.0, 6.0)]
    found = ratios(*runs(a, b), seed=0)
    assert [(one.ratio, one.num_pairs) for one in found] == [(pytest.approx(3.0), 1)] * 3
    assert {one.verdict for one in found} == {"too few pairs"}
    assert ratios(*runs([FAILED], [FAILED]), seed=0) == []


# --- with servers --------------------------------------------------------------------------------


class Writing(BaseHTTPRequestHandler):
    """Notes its server's name when it is asked, and refuses the prompt "bad"."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append(self.server.name)  # type: ignore[attr-defined]
        event = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n'
        self.send_response(500 if b"bad" in body else 200)
        self.send_header("content-length", str(len(event)))
        self.end_headers()
        self.wfile.write(event)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def writing(name: str, asked: list[str]) -> Iterator[Target]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Writing) as server:
        server.daemon_threads = True
        server.name, server.asked = name, asked  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        connections = Connections(to_endpoint(url, BenchSettings(url)))
        yield Target(connections, bench_protocols.chat("m", stop_at_end=True), PATIENCE)
        server.shutdown()
        thread.join()


def compared(clients: int, words: list[str]) -> tuple[list[str], list[BenchRun]]:
    """Which servers were asked, in order; and the runs."""
    asked: list[str] = []

    async def work(targets: list[Target]) -> list[BenchRun]:
        load = LoadProfile("label", len(words), clients)
        try:
            return await alternate(
                targets, (BenchPrompt(w, 5) for w in words), load, lambda _: None
            )
        finally:
            for target in targets:
                target.connections.close()

    with ExitStack() as stack:
        targets = [stack.enter_context(writing(name, asked)) for name in "AB"]
        return asked, asyncio.run(work(targets))


def test_each_prompt_goes_to_both_and_who_is_first_changes() -> None:
    asked, (first, second) = compared(1, ["one", "two", "three"])
    assert asked == ["A", "B", "B", "A", "A", "B"]
    assert (first.label, second.label) == ("label, A", "label, B")
    assert first.seconds == pytest.approx(sum(one.ended - one.sent for one in first.outcomes))


def test_a_failure_leaves_the_pairs_in_order() -> None:
    _, (first, second) = compared(3, ["one", "bad", "two", "bad", "three"])
    kinds = [[one.failure[0] for one in run.outcomes] for run in (first, second)]
    assert kinds[0] == kinds[1]
    assert sorted(kinds[0]) == ["", "", "", "status 500", "status 500"]
