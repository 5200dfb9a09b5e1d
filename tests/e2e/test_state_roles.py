"""Roles of a model whose layers have a state, between processes, also when one is killed."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, engine_of, eventually
from tests.e2e.test_roles import NAME, ask, in_one_process, memories, pids, served, stopped
from tests.llm import checkpoints
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
KIND = "qwen3-next"


def prompt(seed: int) -> list[int]:
    return [9 + (index * 7 + index * seed) % 150 for index in range(420)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("roles")
    checkpoints.build(KIND, place)
    return place


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    with served(directory, KIND, {"prefill": 1, "decode": 1}) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[LLM]:
    with in_one_process(directory / KIND) as llm:
        yield llm


def assert_answered(answer: dict[str, Any], alone: LLM, tokens: list[int]) -> None:
    """Assert that the answer is that of the model in one process."""
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    ((completion,),) = (answer.outputs for answer in alone.generate([tokens], params))
    assert answer["choices"][0]["token_ids"] == list(completion.token_ids)


def test_answers_are_those_of_a_process_also_if_a_worker_is_killed(calls, alone):
    for seed in range(3):
        answer = ask(calls, prompt(seed), return_token_ids=True)
        assert_answered(answer, alone, prompt(seed))
    eventually(lambda: engine_of(calls, NAME)["num_handoff_tokens"] == 3 * 416)
    (prefill,), (decode,) = pids(calls, "prefill"), pids(calls, "decode")
    with ThreadPoolExecutor(1) as pool, stopped(prefill):
        waiting = pool.submit(ask, calls, prompt(4), return_token_ids=True)
        eventually(lambda: memories(decode))
        os.kill(prefill, signal.SIGKILL)
        assert_answered(waiting.result(PATIENCE), alone, prompt(4))
    eventually(lambda: engine_of(calls, NAME)["num_handoffs_failed"] == 1)
    eventually(lambda: not memories(decode))
