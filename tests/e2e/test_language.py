"""Language models behind a real server: MindSpore's own protocols, stages, leaving, deadlines.

What other protocols make of them is tested beside their front ends.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import (
    Calls,
    config,
    engine_of,
    eventually,
    is_idle,
    serving,
    write_servable,
)
from tests.llm import chatty
from tests.waiting import PATIENCE

STAGES = """
from mindspore_serving.llm import SamplingParams
params = SamplingParams(max_tokens=6, temperature=0)
llm = register.declare_llm(
    "../chatty", draft="../chatty", dtype="f32", kv_cache_memory=64 << 20, params=params
)

def to_prompt(question):
    return f"Q: {question} A:"
def shout(text, reason):
    return text.upper(), reason

@register.register_method(output_names=["answer", "reason"])
def ask(question):
    prompt = register.add_stage(to_prompt, question, outputs_count=1)
    text, reason = register.add_stage(llm, prompt, outputs_count=2)
    return register.add_stage(shout, text, reason, outputs_count=2)

@register.register_method(output_names=["answer"])
def ask_with(prompt, parameters):
    return register.add_stage(llm, prompt, parameters, outputs_count=1)
"""
PLAIN = """
def twice(x):
    return x * 2
@register.register_method(output_names=["y"])
def double(x):
    return register.add_stage(twice, x, outputs_count=1)
"""
LONG = {"max_tokens": 60_000, "parameters": '{"ignore_eos": true}'}  # half a minute of them


# Without guesses every token is a piece of its own, so pieces can be compared.
OPTIONS = {"dtype": "f32", "kv_cache_memory": 64 << 20, "num_speculative_tokens": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("language")
    chatty.build(directory, context=65536)
    write_servable(directory, "asker", STAGES)
    write_servable(directory, "plain", PLAIN)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    """A language model twice, alone and as a stage, and a classic servable behind one port."""
    model = config(place, "chatty", llm_options=OPTIONS)
    with serving(place, model, config(place, "asker"), config(place, "plain")) as found:
        yield found


@pytest.fixture(scope="module")
def offline(place: Path) -> Iterator[LLM]:
    with LLM(place / "chatty", dtype="f32") as llm:
        yield llm


def greedy(offline: LLM, prompt: str, count: int) -> str:
    params = SamplingParams(max_tokens=count, temperature=0)
    return offline.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def test_generate_answers_as_the_offline_interface_does(calls, offline):
    instances = [{"prompt": text, "max_tokens": 12, "temperature": 0} for text in ("Hello", "Why")]
    answer = calls.post("chatty", "generate", instances)
    expected = [{"text": greedy(offline, one["prompt"], 12)} for one in instances]
    assert [{"text": one["text"]} for one in answer["instances"]] == expected
    assert {one["finish_reason"] for one in answer["instances"]} <= {"length", "stop"}


@pytest.mark.parametrize("method", ["generate_stream", "generated_stream"])
def test_the_stream_has_the_same_text_in_pieces(calls, offline, method):
    instance = {"prompt": "Hello", "max_tokens": 12, "temperature": 0}
    body = json.dumps({"instances": [instance]})
    _, answer = calls.http_call("POST", f"/model/chatty:{method}", body)
    events = [json.loads(line[6:]) for line in answer.decode().split("\n\n")[:-1]]
    pieces = [event["instances"][0] for event in events]
    assert len(pieces) > 3
    assert "".join(piece["text"] for piece in pieces) == greedy(offline, "Hello", 12)
    assert [piece["finish_reason"] for piece in pieces[:-1]] == [""] * (len(pieces) - 1)


def test_grpc_streams_too_and_takes_token_ids(calls, offline):
    client = calls.client("chatty", "generate")
    by_text = list(client.infer_stream({"prompt": "Hello", "max_tokens": 8, "temperature": 0}))
    ids = np.array(offline.tokenizer.encode("Hello"))
    by_ids = list(client.infer_stream({"prompt": ids, "max_tokens": 8, "temperature": 0}))
    assert by_text == by_ids
    assert "".join(piece["text"] for piece in by_text) == greedy(offline, "Hello", 8)


def test_a_model_is_a_stage_between_python_stages(calls, offline):
    expected = greedy(offline, "Q: why? A:", 6).upper()
    assert calls.post("asker", "ask", [{"question": "why?"}]) == {
        "instances": [{"answer": expected, "reason": "length"}]
    }
    pieces = list(calls.client("asker", "ask").infer_stream({"question": "why?"}))
    assert "".join(piece["answer"] for piece in pieces) == expected
    assert len(pieces) > 1


def test_a_stage_takes_parameters_as_json(calls, offline):
    instance = {"prompt": "Hello", "parameters": '{"max_tokens": 3}'}
    answer = calls.post("asker", "ask_with", [instance])
    assert answer == {"instances": [{"answer": greedy(offline, "Hello", 3)}]}


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens is -1, expected an int >= 1"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens should be a number"),
        ({"prompt": "x", "parameters": '{"foo": 1}'}, "unknown parameter 'foo'"),
        ({"prompt": "x", "parameters": "[1]"}, "parameters should be a JSON object"),
        ({"prompt": "x" * 70_000}, "the model takes at most 65536 together with the answer"),
        ({"prompt": [1, 2, 100000]}, "token id 100000, expected ids from 0 to 511"),
        ({"prompt": [1.5]}, "the prompt should be a text, or an array of token ids"),
        ({"max_tokens": 3}, "prompt"),
    ],
)
def test_invalid_requests_are_refused_and_valid_requests_answered(calls, instance, words):
    if "prompt" not in instance:
        assert words in calls.post("chatty", "generate", [instance])["error_msg"]
        return
    good = {"prompt": "Hello", "max_tokens": 2}
    first, second = calls.post("chatty", "generate", [instance, good])["instances"]
    assert words in first["error_msg"]
    assert second["finish_reason"] == "length"


def test_classic_servables_share_the_port(calls):
    assert calls.post("plain", "double", [{"x": 4}]) == {"instances": [{"y": 8}]}


def test_a_reader_that_leaves_frees_its_blocks(calls):
    instance = {"prompt": "Hello", **LONG}
    check_leaving(calls, "chatty", calls.client("chatty", "generate").infer_stream(instance))


def check_leaving(calls: Calls, name: str, pieces: Iterator[Any]) -> None:
    """Who leaves a stream gives its blocks back, long before its last token."""
    before = engine_of(calls, name)["num_generated_tokens"]
    next(pieces)
    eventually(lambda: engine_of(calls, name)["num_running"] == 1)
    pieces.close()
    eventually(lambda: is_idle(calls, name), what="the request is dropped")
    assert engine_of(calls, name)["num_generated_tokens"] - before < LONG["max_tokens"]


def test_a_reader_of_a_stage_that_leaves_frees_its_blocks_too(calls):
    instance = {"prompt": "Hello", "parameters": '{"max_tokens": 60000, "ignore_eos": true}'}
    check_leaving(calls, "asker", calls.client("asker", "ask_with").infer_stream(instance))


def test_a_deadline_ends_a_generation(calls):
    body = json.dumps({"instances": [{"prompt": "Hello", **LONG}]})
    headers = {"X-Request-Timeout": "0.05"}
    _, answer = calls.http_call("POST", "/model/chatty:generate", body, headers)
    assert "no answer within 0.05 seconds" in json.loads(answer)["error_msg"]
    eventually(lambda: is_idle(calls, "chatty"))


def test_concurrent_requests_are_answered_like_a_single_request(calls, offline):
    client = calls.client("chatty", "generate")
    futures = [
        client.infer_async({"prompt": f"Number {i % 8}", "max_tokens": 5, "temperature": 0})
        for i in range(64)
    ]
    for i, future in enumerate(futures):
        assert future.result(PATIENCE)[0]["text"] == greedy(offline, f"Number {i % 8}", 5)
