"""vLLM beside MindSpore in one server, and what requests to it choose beside their text: adapters,
salts of the cache, priorities."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, children, config, eventually, write_servable
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
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
VLLM = next(kind for kind in KINDS if kind.engine == "vllm")
RANKS = {"one": 4, "two": 12}  # of the adapters
BLOCK = 32
MANY = 10  # times PATIENCE: vLLM imports for a minute where the machine is busy
MINDSPORE = """
import mindspore

def add(x):
    return (mindspore.Tensor(x) + 1).asnumpy(), np.__version__

@register.register_method(output_names=["sum", "numpy"])
def plus_one(x):
    return register.add_stage(add, x, outputs_count=2)
"""
LONG = [number % 400 + 6 for number in range(2 * BLOCK + 1)]  # a prompt of two blocks and a token


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and its adapters."""
    pytest.importorskip("mindspore")
    environment(VLLM)
    from tests.llm import lora_files

    directory = tmp_path_factory.mktemp("vllm")
    for seed, (name, rank) in enumerate(RANKS.items()):
        tensors = lora_files.adapter(model(VLLM, directory), lora_files.INNER, seed, rank)
        modules = [one.rpartition(".")[2] for one in lora_files.INNER]
        about = {"r": rank, "lora_alpha": 2 * rank, "target_modules": modules}
        lora_files.write(directory / name, tensors, **about)
    write_servable(directory, "classic", MINDSPORE)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    """One sequence is computed at a time."""
    options = {**VLLM.llm_options, "adapters": adapters(place), "max_num_seqs": 1}
    own = {**VLLM.engine_options, "block_size": BLOCK}
    kind = replace(VLLM, llm_options=options, engine_options=own)
    with served(kind, place, config(place, "classic"), allow_priority=True) as found:
        yield found


def adapters(place: Path) -> dict[str, str]:
    return {name: str(place / name) for name in RANKS}


def post(calls: Calls, path: str, **body: Any) -> tuple[int, Any]:
    status, answer = calls.http_call("POST", path, json.dumps(body))
    return status, json.loads(answer)


def test_mindspore_has_its_numpy_beside_that_of_vllm(calls: Calls) -> None:
    (answer,) = calls.post("classic", "plus_one", [{"x": [1, 2]}])["instances"]
    assert answer == {"sum": [2, 3], "numpy": numpy.__version__}
    program = "import numpy; print(numpy.__version__)"
    theirs = subprocess.check_output([environment(VLLM), "-c", program], text=True)
    assert [answer["numpy"][0], theirs[0]] == ["1", "2"]
    assert row(calls)["workers"][0]["python"].startswith(environment(VLLM))


def test_log_probabilities_of_a_prompt_are_those_of_our_engine(calls: Calls, place: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(model(VLLM, place), dtype="f32", kv_cache_memory=16 << 20) as llm:
        (ours,) = llm.generate(PROMPT, params, use_tqdm=False)
    found = complete(calls, echo=True, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    expected = [entry[0].logprob for entry in ours.prompt_logprobs[1:]]
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-3)


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
    assert "'three' does not exist; available: chatty, one, two" in answer["error"]


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
            eventually(lambda: row(calls)["engine"].get("num_waiting", 0) == 1)
            with streaming(calls, max_tokens=1, priority=-5) as urgent:
                eventually(lambda: row(calls)["engine"].get("num_waiting", 0) == 2)
                first.close()
                # The other one would take the only place for all of its tokens.
                assert urgent.recv(100).startswith(b"HTTP/1.1 200")
            later.close()
    eventually(lambda: not row(calls)["requests"]["running"])


def test_priorities_that_do_not_fit_are_refused(calls: Calls) -> None:
    status, answer = post(calls, "/v1/completions", model=NAME, prompt=PROMPT, priority="high")
    assert (status, answer["error"]["param"]) == (400, "priority")


def test_the_death_of_a_process_of_vllm_is_survived(calls: Calls) -> None:
    (worker,) = row(calls)["workers"]
    (core,) = [one for one in children(worker["pid"]) if b"EngineCore" in command(one)]
    os.kill(core, signal.SIGKILL)
    old = (worker["pid"], None)
    eventually(lambda: row(calls)["workers"][0]["pid"] not in old, MANY * PATIENCE)
    eventually(lambda: row(calls)["workers"][0]["state"] == "ready", MANY * PATIENCE)
    assert complete(calls, max_tokens=2)["usage"]["completion_tokens"] == 2


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
