"""Roles of workers: a prompt is computed on one and its stream goes on on another, also when either
is killed or stopped."""

import http.client
import itertools
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core import backoff
from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import (
    Calls,
    config,
    engine_of,
    eventually,
    is_alive,
    is_idle,
    row_of,
    serving,
)
from tests.llm import chatty
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e

OPTIONS: dict[str, Any] = {
    "dtype": "f32", "num_threads": 1, "kv_cache_memory": 64 << 20, "handoff_tokens": 64,
}  # fmt: skip
ROLES = {"prefill": 1, "decode": 2}
_seeds = itertools.count(100)


def prompt(seed: int, count: int = 700) -> list[int]:
    """A prompt that begins unlike those with other seeds."""
    return [9 + seed % 400, 9 + seed // 400, *(9 + index * 7 % 480 for index in range(count - 2))]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("roles")
    chatty.build(place, context=4096)
    return place


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backoff, "QUICK", 0.0)
        options = config(
            directory, "chatty", roles=ROLES, num_parallel_workers=0, llm_options=OPTIONS
        )
        with serving(directory, options) as opened:
            yield opened


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[LLM]:
    """The same model in one process."""
    options = {name: value for name, value in OPTIONS.items() if name != "handoff_tokens"}
    with LLM(directory / "chatty", **options) as llm:
        yield llm


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def ask(calls: Calls, tokens: list[int], **more: Any) -> dict[str, Any]:
    body = {"prompt": tokens, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body).encode())
    assert status == 200, answer
    choices: dict[str, Any] = json.loads(answer)
    return choices


def expected(alone: LLM, tokens: list[int], **params: Any) -> list[str]:
    """The texts of the model in one process."""
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, **params}
    (answer,) = alone.generate([tokens], SamplingParams(**options))
    return [completion.text for completion in answer.outputs]


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def pids(calls: Calls, role: str) -> list[int]:
    """The workers of a role, once all are ready."""

    def ready() -> list[int]:
        rows = row_of(calls, "chatty")["workers"]
        numbers = [row["pid"] for row in rows if row.get("role") == role]
        states = {row["state"] for row in rows}
        return numbers if states == {"ready"} and all(map(is_alive, numbers)) else []

    return eventually(ready)


def memories(pid: int) -> int:
    """How many memories for blocks the process has open."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:blocks-")
        except OSError:
            continue
    return count


def waits_for_blocks(calls: Calls) -> int:
    """A worker that decodes, once it waits for the blocks of a prompt."""

    def waiting() -> int:
        return next((pid for pid in pids(calls, "decode") if memories(pid)), 0)

    return eventually(waiting)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def willing(calls: Calls) -> Calls:
    """The server, once all workers that decode let the other one compute prompts.

    After a failure they do not for a second or more.
    """
    pids(calls, "prefill")

    def both() -> bool:
        before = engine_of(calls, "chatty")["num_handoffs"]
        for _ in range(ROLES["decode"]):  # they take turns
            ask(calls, prompt(next(_seeds)))
        return engine_of(calls, "chatty")["num_handoffs"] == before + ROLES["decode"]

    eventually(both)
    return calls


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of the server, no worker has memory or blocks of a request."""
    yield
    if "calls" in request.fixturenames:
        calls = request.getfixturevalue("calls")
        workers = [*pids(calls, "prefill"), *pids(calls, "decode")]
        eventually(lambda: not any(map(memories, workers)))
        eventually(lambda: is_idle(calls, "chatty"))


def test_answers_equal_those_of_a_single_process(calls, alone):
    (prefill,) = pids(calls, "prefill")
    for seed in range(3):
        assert texts(ask(calls, prompt(seed))) == expected(alone, prompt(seed))
    sampled = {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "seed": 5, "n": 2}
    tokens = prompt(4)
    assert texts(ask(calls, tokens, **sampled)) == expected(alone, tokens, **sampled)
    eventually(lambda: engine_of(calls, "chatty")["num_handoffs"] >= 4)
    engine = engine_of(calls, "chatty")
    assert engine["num_handoffs_computed"] >= 4
    assert engine["num_handoff_bytes_read"] == engine["num_handoff_bytes_written"]
    assert engine["num_handoff_tokens"] == engine["num_handoffs"] * 672
    assert pids(calls, "prefill") == [prefill]


def test_a_stream_begins_with_the_usage_of_a_prompt_that_is_not_cached(calls):
    answer = ask(calls, prompt(10), stream=False)
    details = answer["usage"]["prompt_tokens_details"]
    assert (answer["usage"]["prompt_tokens"], details["cached_tokens"]) == (700, 0)
    again = ask(calls, prompt(10))["usage"]["prompt_tokens_details"]
    assert again["cached_tokens"] == 672


def test_metrics_and_servables_tell_the_roles(calls):
    ask(calls, prompt(11))
    assert row_of(calls, "chatty")["roles"] == ROLES

    def counted() -> bool:
        text = calls.http_call("GET", "/metrics")[1].decode()
        lines = [line for line in text.splitlines() if line.startswith("serving_llm_handoff_")]
        values = {line.partition("{")[0]: float(line.split()[-1]) for line in lines}
        return (
            values["serving_llm_handoff_prompts_total"] > 0
            and values["serving_llm_handoff_read_bytes_total"] > 0
            and values["serving_llm_handoff_seconds_total"] > 0
        )

    eventually(counted)


def test_clients_cannot_call_the_method_of_workers(calls):
    answer = calls.post("chatty", "@prefill", [{"prompt": [1]}])
    assert "error_msg" in answer


@pytest.mark.slow
def test_a_worker_that_decodes_computes_the_prompt_of_a_stopped_worker(willing, alone, pool):
    (prefill,) = pids(willing, "prefill")
    failed = engine_of(willing, "chatty")["num_handoffs_failed"]
    with stopped(prefill):
        assert texts(ask(willing, prompt(20))) == expected(alone, prompt(20))
        eventually(lambda: engine_of(willing, "chatty")["num_handoffs_failed"] == failed + 1)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_prompt_is_answered_if_a_worker_is_killed_meanwhile(willing, alone, pool, role):
    (prefill,) = pids(willing, "prefill")
    tokens = prompt(30 + len(role))
    with stopped(prefill):
        answer = pool.submit(ask, willing, tokens)
        decode = waits_for_blocks(willing)
        os.kill(prefill if role == "prefill" else decode, signal.SIGKILL)
    assert texts(answer.result(PATIENCE)) == expected(alone, tokens)


@pytest.mark.slow
def test_a_client_that_leaves_frees_the_memory(willing):
    (prefill,) = pids(willing, "prefill")
    body = json.dumps({"prompt": prompt(40), "max_tokens": 12, "stream": True})
    client = http.client.HTTPConnection("127.0.0.1", willing.http, timeout=PATIENCE)
    with stopped(prefill):
        client.request("POST", "/v1/completions", body)
        decode = waits_for_blocks(willing)
        client.close()
        eventually(lambda: not memories(decode))
