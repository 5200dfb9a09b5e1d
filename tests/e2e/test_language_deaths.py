"""Workers of language models that die or hang: what only waited there is answered by the next one,
what was computed is computed once more by itself, and what had given output fails.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core import backoff
from tests.e2e.harness import Calls, config, eventually, in_flight, serving, workers, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE

# A step that computes a prompt of POISON ends the process, one of SLOW waits while "slow" is there,
# and every step does while "pause" is.
SOURCE = """
import os
from pathlib import Path
from mindspore_serving.llm import SamplingParams
from mindspore_serving.llm.engine.request_table import RequestTable

here = Path(__file__).parent
POISON, SLOW = 77, 88
params = SamplingParams(max_tokens=60_000, ignore_eos=True)  # half a minute of them
llm = register.declare_llm(
    "../chatty", dtype="f32", max_num_seqs=2, kv_cache_memory=64 << 20, params=params
)
RequestTable.read_now = RequestTable.read

def wait_while(name):
    while (here / name).exists():
        (here / f"{name}-{os.getpid()}").touch()
        time.sleep(0.002)

def read(self, scheduled):
    tokens = {token for sequence in scheduled.sequences for token in sequence.tokens[:1]}
    wait_while("pause")
    if SLOW in tokens:
        wait_while("slow")
    if POISON in tokens:
        with open(here / "poisoned", "a") as file:
            file.write("x")
        os._exit(3)
    return self.read_now(scheduled)

RequestTable.read = read

@register.register_method(output_names=["text"])
def generate(prompt):
    return register.add_stage(llm, prompt, outputs_count=1)
"""
WORDS = ("pause", "slow", "poisoned")  # beginnings of the names of files
POISON, SLOW, FINE = [77, 9], [88, 9], [66, 9]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("deaths")
    chatty.build(found, context=65536)
    write_servable(found, "frail", SOURCE)
    return found


@pytest.fixture
def place(directory: Path) -> Path:
    """The directory, without what the test before left there."""
    for name in WORDS:
        for file in (directory / "frail").glob(f"{name}*"):
            file.unlink()
    return directory


@pytest.fixture(scope="module")
def calls(directory: Path, request: pytest.FixtureRequest) -> Iterator[Calls]:
    """Its workers are started again at once, however many of them died."""
    options = getattr(request, "param", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backoff, "QUICK", 0.0)
        with serving(directory, config(directory, "frail", **options)) as found:
            yield found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients of a server that other tests share."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


def ask(calls: Calls, prompt: list[int], **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body).encode())
    return status, json.loads(answer)


def wait_until_it_runs(place: Path, name: str = "pause") -> int:
    """The worker whose step waits for a file."""
    seen = eventually(lambda: list((place / "frail").glob(f"{name}-*")))
    return int(seen[0].name.rpartition("-")[2])


def test_requests_without_output_are_answered_by_the_next_worker(calls, place, pool):
    pause = place / "frail" / "pause"
    expected = ask(calls, FINE)
    pause.touch()
    answers = [pool.submit(ask, calls, FINE) for _ in range(6)]
    victim = wait_until_it_runs(place)
    eventually(lambda: in_flight(calls) == 6)
    os.kill(victim, signal.SIGKILL)
    pause.unlink()
    assert expected[0] == 200
    for answer in answers:
        status, body = answer.result(PATIENCE)
        assert (status, body["choices"]) == (200, expected[1]["choices"])


def test_a_prompt_that_kills_workers_fails_and_those_that_wait_do_not(calls, place, pool):
    pause = place / "frail" / "pause"
    pause.touch()
    running = pool.submit(ask, calls, FINE)
    wait_until_it_runs(place)
    others = [pool.submit(ask, calls, FINE) for _ in range(4)]
    eventually(lambda: in_flight(calls) == 5)
    poison = pool.submit(ask, calls, POISON)
    eventually(lambda: in_flight(calls) == 6)
    pause.unlink()
    status, body = poison.result(PATIENCE)
    assert status == 503
    assert "died" in body["error"]["message"]
    assert [one.result(PATIENCE)[0] for one in (running, *others)] == [200] * 5
    assert (place / "frail" / "poisoned").read_text() == "xx"


def test_an_accepted_stream_without_output_moves_to_the_next_worker(calls, place, pool):
    expected = ask(calls, FINE)[1]["choices"][0]["text"]
    pause = place / "frail" / "pause"
    pause.touch()
    body = {"prompt": FINE, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True}
    stream = pool.submit(calls.http_call, "POST", "/v1/completions", json.dumps(body).encode())
    os.kill(wait_until_it_runs(place), signal.SIGKILL)
    pause.unlink()
    status, text = stream.result(PATIENCE)
    *pieces, last = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
    assert (status, last) == (200, "[DONE]")
    assert "".join(json.loads(piece)["choices"][0]["text"] for piece in pieces) == expected


def test_a_stream_that_had_output_ends_with_an_error(calls, place):
    pieces = calls.client("frail", "generate").infer_stream({"prompt": "x"})
    assert "text" in next(pieces)
    (victim,) = workers(os.getpid())
    os.kill(victim, signal.SIGKILL)
    assert "died" in list(pieces)[-1]["error"]
    assert ask(calls, FINE)[0] == 200


def test_a_request_waits_while_the_worker_is_replaced(calls):
    (victim,) = workers(os.getpid())
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: not workers(os.getpid()) or victim not in workers(os.getpid()))
    assert calls.http_call("GET", "/v1/models/frail")[0] == 200
    assert ask(calls, FINE)[0] == 200


@pytest.mark.parametrize("calls", [{"step_timeout": 2.0}], indirect=True)
def test_a_step_that_runs_too_long_costs_its_own_requests(calls, place, pool):
    slow = place / "frail" / "slow"
    slow.touch()
    hung = pool.submit(ask, calls, SLOW)
    victim = wait_until_it_runs(place, "slow")
    others = [pool.submit(ask, calls, FINE) for _ in range(3)]
    status, body = hung.result(PATIENCE)
    assert status == 500
    assert "ran for over 2 s (step_timeout)" in body["error"]["message"]
    assert [other.result(PATIENCE)[0] for other in others] == [200] * 3
    assert victim not in workers(os.getpid())
