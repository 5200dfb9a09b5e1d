"""What requests to vLLM choose beside their text: adapters, salts of the cache, priorities."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, eventually
from tests.engines.served import (
    COUNT,
    KINDS,
    NAME,
    PROMPT,
    complete,
    environment,
    model,
    row,
    served,
    streaming,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
VLLM = next(kind for kind in KINDS if kind.engine == "vllm")
RANKS = {"one": 4, "two": 12}  # of the adapters
BLOCK = 32
LONG = [number % 400 + 6 for number in range(2 * BLOCK + 1)]  # a prompt of two blocks and a token


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and its adapters."""
    from tests.llm import lora_files

    environment(VLLM)
    directory = tmp_path_factory.mktemp("vllm")
    for seed, (name, rank) in enumerate(RANKS.items()):
        tensors = lora_files.adapter(model(VLLM, directory), lora_files.INNER, seed, rank)
        modules = [one.rpartition(".")[2] for one in lora_files.INNER]
        config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": modules}
        lora_files.write(directory / name, tensors, **config)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    """One sequence is computed at a time."""
    options = {**VLLM.llm_options, "adapters": adapters(place), "max_num_seqs": 1}
    own = {**VLLM.engine_options, "block_size": BLOCK}
    kind = replace(VLLM, llm_options=options, engine_options=own)
    with served(kind, place, allow_priority=True) as found:
        yield found


def adapters(place: Path) -> dict[str, str]:
    return {name: str(place / name) for name in RANKS}


def post(calls: Calls, path: str, **body: Any) -> tuple[int, Any]:
    status, answer = calls.http_call("POST", path, json.dumps(body))
    return status, json.loads(answer)


def test_adapters_change_the_answer_as_our_engine_does(calls: Calls, place: Path) -> None:
    names = ["", *RANKS]
    params = SamplingParams(temperature=0, max_tokens=COUNT)
    options = {"dtype": "f32", "kv_cache_memory": 16 << 20, "adapters": adapters(place)}
    with LLM(model(VLLM, place), **options) as llm:
        answers = [llm.generate(PROMPT, params, use_tqdm=False, adapter=name) for name in names]
    ours = [answer.outputs[0].text for (answer,) in answers]
    assert len(set(ours)) == len(names)
    assert [complete(calls, model=n or NAME)["choices"][0]["text"] for n in names] == ours


def test_an_unknown_adapter_is_refused_as_each_protocol_does(calls: Calls) -> None:
    status, answer = post(calls, "/v1/completions", model="three", prompt=PROMPT)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer = post(calls, "/generate", inputs=PROMPT, parameters={"adapter_id": "three"})
    assert (status, answer["error_type"]) == (422, "validation")
    assert "'three' does not exist; there is: chatty, one, two" in answer["error"]


def test_a_salt_has_a_prefix_cache_of_its_own(calls: Calls) -> None:
    before = number(calls, "prefix_cache_hits"), number(calls, "prefix_cache_queries")
    found = []
    for salt in ("red", "blue", None, "red"):
        usage = complete(calls, prompt=LONG, max_tokens=1, cache_salt=salt)["usage"]
        found.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert found == [0, 0, 0, 2 * BLOCK]
    asked = before[1] + 4 * len(LONG)
    eventually(lambda: number(calls, "prefix_cache_queries") == asked)
    assert number(calls, "prefix_cache_hits") == before[0] + 2 * BLOCK


def number(calls: Calls, name: str) -> float:
    """A counter of the model's in /metrics."""
    text = calls.http_call("GET", "/metrics")[1].decode()
    start = f"serving_llm_{name}_total{{"
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))


def test_the_more_urgent_of_two_that_wait_runs_first(calls: Calls) -> None:
    most = 16_000
    with streaming(calls, max_tokens=most) as first:
        first.recv(1)
        with streaming(calls, max_tokens=most, priority=5) as later:
            eventually(lambda: row(calls)["engine"]["num_waiting"] == 1)
            with streaming(calls, max_tokens=1, priority=-5) as urgent:
                eventually(lambda: row(calls)["engine"]["num_waiting"] == 2)
                first.close()
                # The other one would take the only place for all of its tokens.
                assert urgent.recv(100).startswith(b"HTTP/1.1 200")
            later.close()
    eventually(lambda: not row(calls)["requests"]["running"])


def test_priorities_that_do_not_fit_are_refused(calls: Calls) -> None:
    status, answer = post(calls, "/v1/completions", model=NAME, prompt=PROMPT, priority="high")
    assert (status, answer["error"]["param"]) == (400, "priority")
