"""Both forms before a real engine, asked by MindsporeInferenceClient and by what its readers did
themselves; answers are those of the offline interface."""

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.client import MindsporeInferenceClient
from mindspore_serving.errors import InvalidInputs, NotFound
from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, config, eventually, is_idle, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow]
PROMPT = "Hello"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llm_serving")
    chatty.build(directory, context=2048)
    return directory


@pytest.fixture(scope="module", params=["r21", "bare"])
def calls(place: Path, request: pytest.FixtureRequest) -> Iterator[Calls]:
    options = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 16 << 20}
    model = config(place, "chatty", llm_options=options)
    with serving(place, model, llm_serving_form=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def expected(place: Path) -> Iterator[Callable[..., str]]:
    with LLM(place / "chatty", dtype="f32", kv_cache_dtype="f32") as llm:

        def run(count: int, **options: Any) -> str:
            params = SamplingParams(**{"max_tokens": count, "temperature": 0.0, **options})
            return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text

        yield run


@pytest.fixture
def client(calls: Calls) -> MindsporeInferenceClient:
    return MindsporeInferenceClient("llama2", f"http://127.0.0.1:{calls.http}", timeout=PATIENCE)


def test_the_client_gets_the_models_own_answer(client, expected):
    answer = client.generate(PROMPT, max_new_tokens=12)
    assert answer.generated_text == expected(12)
    assert (answer.finish_reason, answer.generated_tokens) == ("length", 12)
    assert "".join(token.text for token in answer.tokens) == answer.generated_text


@pytest.mark.parametrize("protocol", ["sse", "lines"])
def test_the_client_reads_the_stream_of_either_protocol(client, expected, protocol):
    pieces = list(
        client.generate_stream(PROMPT, do_sample=False, max_new_tokens=12, return_protocol=protocol)
    )
    texts = [piece.token.text for piece in pieces if piece.token]
    assert len(texts) == 12
    assert "".join(texts) == expected(12)
    assert pieces[-1].generated_text == expected(12)


def test_sampling_follows_its_seed_and_its_top_k(client, expected):
    given = {"do_sample": True, "temperature": 0.8, "top_k": 20, "max_new_tokens": 12}
    first = client.generate(PROMPT, seed=5, **given)
    assert first.generated_text == client.generate(PROMPT, seed=5, **given).generated_text
    assert first.generated_text == expected(12, temperature=0.8, top_k=20, seed=5)


def test_parameters_ignored_by_the_original_have_an_effect(client, expected):
    plain = expected(12)
    penalised = client.generate(PROMPT, max_new_tokens=12, repetition_penalty=5.0)
    assert penalised.generated_text == expected(12, repetition_penalty=5.0)
    stopped = client.generate(PROMPT, max_new_tokens=12, stop=[plain[2:4]])
    assert stopped.generated_text == plain[: plain.index(plain[2:4]) + 2]
    assert stopped.finish_reason == "stop_sequence"


def test_a_prompt_that_does_not_fit_is_an_error_of_the_client(client):
    with pytest.raises(InvalidInputs, match="^Error202: prompt out of range$"):
        client.generate("? " * 2048, max_new_tokens=5)
    with pytest.raises(InvalidInputs, match="^Error203: prompt token empty$"):
        list(client.generate_stream(""))


def test_a_model_that_is_not_there_is_an_error_of_the_client(calls):
    client = MindsporeInferenceClient("gpt5", f"http://127.0.0.1:{calls.http}")
    with pytest.raises(NotFound, match="The model 'gpt5' does not exist; available: chatty"):
        client.generate(PROMPT)


def test_leaving_the_stream_frees_the_request(calls, client):
    stream = client.generate_stream(PROMPT, do_sample=True, top_k=100, max_new_tokens=2000)
    next(stream)
    stream.close()
    eventually(lambda: is_idle(calls, "chatty"), what="the request is dropped")


def test_numbers_are_told_as_events(calls):
    for name in ("get_bs", "get_request_numbers", "get_serverd_model_info"):
        status, answer = calls.http_call("GET", f"/serving/{name}")
        assert status == 200
        assert answer.startswith(b"data: {")
        found = json.loads(answer[6:])
        assert found.get("model_id", "chatty") == "chatty"


def test_lines_come_as_the_form_is_and_as_they_are_made(calls, expected, request):
    """As programs read them that have no client: line by line, parsing each as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    body = {"inputs": PROMPT, "parameters": {"do_sample": "False", "max_new_tokens": "6"}}
    connection.request("POST", "/models/llama2/generate_stream", json.dumps(body))
    lines = [line for line in connection.getresponse().read().split(b"\n") if line.strip()]
    connection.close()
    form = request.node.callspec.params["calls"]
    if form == "bare":
        texts = [json.loads(line)["data"][0]["generated_text"] for line in lines]
    else:
        texts = [json.loads(line.removeprefix(b"data: "))["data"] for line in lines]
    assert "".join(texts[:-1]) == texts[-1] == expected(6)
