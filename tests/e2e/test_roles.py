"""Roles of workers: a prompt is computed on one and its stream goes on on another, also when either
is killed or stopped."""

import http.client
import itertools
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
NAME = "talker"  # not that of its directory
_seeds = itertools.count(100)


def prompt(seed: int, count: int = 700) -> list[int]:
    """A prompt that begins unlike those with other seeds."""
    return [9 + seed % 400, 9 + seed // 400, *(9 + index * 7 % 480 for index in range(count - 2))]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("roles")
    chatty.build(place, context=4096)
    return place


@contextmanager
def served(directory: Path, model: str, roles: dict[str, int]) -> Iterator[Calls]:
    """Serve a model by workers with roles, which are replaced at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backoff, "QUICK", 0.0)
        options = config(
            directory,
            model,
            alias=NAME,
            roles=roles,
            heartbeat_timeout=5,
            num_parallel_workers=0,
            llm_options=OPTIONS,
        )
        with serving(directory, options) as opened:
            yield opened


def in_one_process(path: Path) -> LLM:
    options = {name: value for name, value in OPTIONS.items() if name != "handoff_tokens"}
    return LLM(path, **options)


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    with served(directory, "chatty", ROLES) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[LLM]:
    """The same model in one process."""
    with in_one_process(directory / "chatty") as llm:
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
        rows = row_of(calls, NAME)["workers"]
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


def waits_for_blocks(workers: list[int]) -> int:
    """The worker that decodes, once it waits for the blocks of a prompt."""
    return eventually(lambda: next((pid for pid in workers if memories(pid)), 0))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it was silent for too long, and replaced
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def willing(calls: Calls) -> Calls:
    """The server, once all workers that decode let the other one compute prompts.

    After a failure they do not for a second or more.
    """
    pids(calls, "prefill")

    def both() -> bool:
        before = engine_of(calls, NAME)["num_handoffs"]
        for _ in range(ROLES["decode"]):  # they take turns
            ask(calls, prompt(next(_seeds)))
        return engine_of(calls, NAME)["num_handoffs"] == before + ROLES["decode"]

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
        eventually(lambda: is_idle(calls, NAME))


def test_answers_equal_those_of_a_single_process(calls, alone):
    seeds = itertools.count()

    def are_handed_off() -> bool:
        tokens = prompt(next(seeds))
        assert texts(ask(calls, tokens)) == expected(alone, tokens)
        return engine_of(calls, NAME)["num_handoffs"] >= 3

    eventually(are_handed_off)
    sampled = {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "seed": 5, "n": 2}
    tokens = prompt(99)
    assert texts(ask(calls, tokens, **sampled)) == expected(alone, tokens, **sampled)
    assert engine_of(calls, NAME)["num_handoff_tokens"] >= 3 * 672

    def is_counted() -> bool:
        """Workers report on their own, so counts of one may be older than the other's."""
        engine = engine_of(calls, NAME)
        is_computed = engine["num_handoffs_computed"] >= engine["num_handoffs"]
        return is_computed and (
            0 < engine["num_handoff_bytes_read"] <= engine["num_handoff_bytes_written"]
        )

    eventually(is_counted)


def test_a_stream_begins_with_the_usage_of_a_prompt_that_is_not_cached(calls):
    answer = ask(calls, prompt(10), stream=False)
    details = answer["usage"]["prompt_tokens_details"]
    assert (answer["usage"]["prompt_tokens"], details["cached_tokens"]) == (700, 0)
    again = ask(calls, prompt(10))["usage"]["prompt_tokens_details"]
    assert again["cached_tokens"] == 672


def test_metrics_and_servables_tell_the_roles(calls):
    ask(calls, prompt(11))
    assert row_of(calls, NAME)["roles"] == ROLES

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
    answer = calls.post(NAME, "@prefill", [{"prompt": [1]}])
    assert "error_msg" in answer


@pytest.mark.slow
def test_a_worker_that_decodes_computes_the_prompt_of_a_stopped_worker(willing, alone, pool):
    (prefill,) = pids(willing, "prefill")
    failed = engine_of(willing, NAME)["num_handoffs_failed"]
    with stopped(prefill):
        assert texts(ask(willing, prompt(20))) == expected(alone, prompt(20))
        eventually(lambda: engine_of(willing, NAME)["num_handoffs_failed"] == failed + 1)


@pytest.mark.slow
def test_requests_to_a_stopped_worker_that_decodes_are_answered_by_another(willing, alone, pool):
    with stopped(pids(willing, "decode")[0]):
        prompts = [prompt(25), prompt(26)]  # one for each worker
        answers = [pool.submit(ask, willing, tokens) for tokens in prompts]
        for answer, tokens in zip(answers, prompts, strict=True):
            assert texts(answer.result(PATIENCE)) == expected(alone, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_prompt_is_answered_if_a_worker_is_killed_meanwhile(willing, alone, pool, role):
    (prefill,), workers = pids(willing, "prefill"), pids(willing, "decode")
    tokens = prompt(30 + len(role))
    with stopped(prefill):
        answer = pool.submit(ask, willing, tokens)
        decode = waits_for_blocks(workers)
        os.kill(prefill if role == "prefill" else decode, signal.SIGKILL)
    assert texts(answer.result(PATIENCE)) == expected(alone, tokens)


@pytest.mark.slow
def test_a_client_that_leaves_frees_the_memory(willing):
    (prefill,), workers = pids(willing, "prefill"), pids(willing, "decode")
    body = json.dumps({"prompt": prompt(40), "max_tokens": 12, "stream": True})
    client = http.client.HTTPConnection("127.0.0.1", willing.http, timeout=PATIENCE)
    with stopped(prefill):
        client.request("POST", "/v1/completions", body)
        decode = waits_for_blocks(workers)
        client.close()
        eventually(lambda: not memories(decode))
    assert pids(willing, "decode") == workers  # none was replaced
