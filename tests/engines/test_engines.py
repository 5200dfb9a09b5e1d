"""The same requests to each engine: the same texts, the same errors, and what it had is freed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.llm import LLM, Answer, SamplingParams
from tests.e2e.harness import Calls, eventually
from tests.e2e.test_language_protocols import PROTOCOLS
from tests.engines.served import (
    COUNT,
    KINDS,
    NAME,
    PROMPT,
    Kind,
    complete,
    model,
    row,
    served,
    streaming,
)
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MANY = 10  # times PATIENCE: vLLM imports for a minute where the machine is busy


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.engine)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def calls(kind: Kind, place: Path) -> Iterator[Calls]:
    with served(kind, place) as found:
        yield found


@pytest.fixture(scope="module")
def reference(kind: Kind, place: Path) -> Answer:
    """What our engine says offline, greedily, with two log-probabilities."""
    with LLM(model(kind, place), dtype="f32", kv_cache_memory=64 << 20) as llm:
        params = SamplingParams(max_tokens=COUNT, temperature=0, logprobs=2)
        return llm.generate(PROMPT, params, use_tqdm=False)[0]


@pytest.fixture(scope="module")
def expected(calls: Calls, reference: Answer, kind: Kind) -> str:
    """That text; of the real model, whose weights have 4 bits, other arithmetic gives another."""
    return texts(complete(calls))[0] if kind.is_real else reference.outputs[0].text


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def refusal(calls: Calls, **options: Any) -> dict[str, Any]:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 4, **options}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body))
    assert status == 400, answer
    return dict(json.loads(answer)["error"])


def test_every_protocol_gives_the_text_of_our_engine(calls: Calls, expected: str) -> None:
    assert {ask.__name__: ask(calls) for ask in PROTOCOLS} == {
        ask.__name__: expected for ask in PROTOCOLS
    }


def test_log_probabilities_are_those_of_our_engine(
    calls: Calls, reference: Answer, kind: Kind
) -> None:
    found = complete(calls, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
    ours = [entry[0].logprob for entry in reference.outputs[0].logprobs or ()]
    if kind.engine == "genai":  # it stores the weights in another form of 4 bits
        assert max(found) <= 0
        assert refusal(calls, logprobs=2)["param"] == "logprobs"
    elif kind.is_real:
        assert found[0] == pytest.approx(ours[0], abs=0.5)
    else:
        assert found == pytest.approx(ours, abs=1e-3)


def test_a_seed_gives_the_same_answers_again(calls: Calls) -> None:
    options = {"temperature": 1.5, "n": 3, "seed": 7}
    first, again = (texts(complete(calls, **options)) for _ in range(2))
    assert first == again
    assert len(set(first)) == 3


def test_a_stop_text_ends_the_answer_and_is_left_out(calls: Calls, expected: str) -> None:
    whole = expected
    stop = whole[len(whole) // 2 :][:2]
    (choice,) = complete(calls, stop=[stop])["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_an_answer_has_the_form_that_is_asked_for(calls: Calls) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["left", "right"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "?"}], "response_format": form}
    body |= {"max_tokens": 40, "temperature": 0}
    status, answer = calls.http_call("POST", "/v1/chat/completions", json.dumps(body))
    assert status == 200, answer
    text = json.loads(answer)["choices"][0]["message"]["content"]
    assert json.loads(text)["a"] in ("left", "right")


def test_wrong_requests_are_refused_alike(calls: Calls) -> None:
    assert "the model takes" in refusal(calls, prompt=[5] * 20_000)["message"]
    assert refusal(calls, temperature=-1)["param"] == "temperature"
    assert "logit_bias" in refusal(calls, logit_bias={"9999999": 1})["message"]


def test_a_parameter_that_the_engine_has_not_is_named(calls: Calls, kind: Kind) -> None:
    if kind.engine in ("vllm", "genai"):
        assert refusal(calls, typical_p=0.5)["param"] == "typical_p"
    else:
        assert texts(complete(calls, typical_p=0.5, max_tokens=2))


def test_a_client_that_leaves_frees_its_request(calls: Calls, kind: Kind) -> None:
    most = 400 if kind.is_real else 16_000
    with streaming(calls, max_tokens=most) as stream:
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        eventually(lambda: row(calls)["requests"]["running"])
    eventually(lambda: not row(calls)["requests"]["running"])

    def is_free() -> bool:
        complete(calls, max_tokens=1)  # numbers are sent with steps
        numbers = row(calls)["engine"]
        return numbers["num_running"] == 0 and numbers["num_waiting"] == 0

    eventually(is_free)


def test_its_numbers_are_in_the_metrics(calls: Calls) -> None:
    complete(calls)
    text = calls.http_call("GET", "/metrics")[1].decode()
    for name in ("generated_tokens_total", "prompt_tokens_total", "cache_blocks", "steps_total"):
        lines = [line for line in text.splitlines() if line.startswith(f"serving_llm_{name}{{")]
        assert float(lines[0].split()[-1]) > 0, name


def test_a_killed_worker_is_replaced(calls: Calls, expected: str) -> None:
    pid = row(calls)["workers"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: row(calls)["workers"][0]["pid"] not in (pid, None), MANY * PATIENCE)
    eventually(lambda: row(calls)["workers"][0]["state"] == "ready", MANY * PATIENCE)
    assert texts(complete(calls)) == [expected]
