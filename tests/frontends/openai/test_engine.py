"""OpenAI's protocol from the client's library down to a real model: master, worker, engine."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pydantic
import pytest

pytest.importorskip("openvino")

from langchain_openai import ChatOpenAI

from tests.e2e.harness import Calls, config, eventually, is_idle, serving
from tests.waiting import PATIENCE

MODEL = Path(__file__).parents[3] / "examples" / "tiny_llm" / "model"
EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 2**24, "max_num_seqs": 8}
QUESTION = [{"role": "user", "content": "What do you know about marriage?"}]
TOOLS_HEAD = (
    '{% if tools %}{{ \'Call a tool as <tool_call>{"name": , "arguments": }</tool_call>: \' }}'
    "{{ tools | tojson }}{% endif %}"
)
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["left", "right"]}, "far": {"type": "boolean"}},
            "required": ["where", "far"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A server of the small model, whose template tells of tools too."""
    directory = tmp_path_factory.mktemp("models")
    shutil.copytree(MODEL, directory / "tiny")
    path = directory / "tiny" / "tokenizer_config.json"
    written = json.loads(path.read_text())
    written["chat_template"] = TOOLS_HEAD + written["chat_template"]
    path.write_text(json.dumps(written))
    with serving(directory, config(directory, "tiny", llm_options=EXACT)) as found:
        yield found


@pytest.fixture(scope="module")
def url(calls: Calls) -> str:
    return f"http://127.0.0.1:{calls.http}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def greedy(client: openai.OpenAI, count: int = 12, **fields):
    return client.chat.completions.create(
        model="tiny", messages=QUESTION, temperature=0, max_tokens=count, **fields
    )


def test_a_stream_says_the_same_as_an_answer(client):
    whole = greedy(client)
    options = {"include_usage": True}
    *chunks, last = greedy(client, stream=True, stream_options=options)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert len(text) > 5
    assert last.usage.completion_tokens == whole.usage.completion_tokens > 3
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_tokenizer_is_described_as_the_models_file_does(calls):
    status, answer = calls.http_call("GET", "/tokenizer_info?model=tiny")
    found, written = json.loads(answer), json.loads((MODEL / "tokenizer_config.json").read_text())
    template = found.pop("chat_template")
    assert template == TOOLS_HEAD + written.pop("chat_template")
    assert (status, found) == (200, {"tokenizer_class": "PreTrainedTokenizerFast", **written})


def test_the_prompt_has_as_many_tokens_as_tokenize_says(calls, client):
    body = json.dumps({"messages": QUESTION})
    counted = json.loads(calls.http_call("POST", "/tokenize", body)[1])
    assert greedy(client, 1).usage.prompt_tokens == counted["count"] == len(counted["tokens"])
    back = json.dumps({"tokens": counted["tokens"]})
    text = json.loads(calls.http_call("POST", "/detokenize", back)[1])["prompt"]
    assert QUESTION[0]["content"] in text


@pytest.mark.torch
def test_loglikelihoods_are_those_of_transformers(client):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompts = [[1025, 308, 262, 390, 500], [58, 2009, 519, 320, 34, 1200, 77]]
    found = client.completions.create(
        model="tiny",
        prompt=prompts,
        temperature=0,
        max_tokens=1,
        logprobs=1,
        seed=1234,
        echo=True,
    )
    for choice, ids in zip(found.choices, prompts, strict=True):
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        told = choice.logprobs
        assert len(told.tokens) == len(ids) + 1
        assert told.token_logprobs[0] is None
        for place, token_id in enumerate(ids[1:]):
            expected = float(logprobs[place, token_id])
            assert told.token_logprobs[place + 1] == pytest.approx(expected, abs=1e-3)
        best = [float(row.max()) for row in logprobs]
        told_best = [max(top.values()) for top in told.top_logprobs[1:]]
        assert told_best == pytest.approx(best, abs=1e-3)
        assert told.token_logprobs[-1] == pytest.approx(best[-1], abs=1e-3)


def test_the_same_seed_gives_the_same_answers(client):
    def ask(seed):
        found = client.chat.completions.create(
            model="tiny", messages=QUESTION, n=3, seed=seed, max_tokens=10
        )
        return [choice.message.content for choice in found.choices]

    first = ask(5)
    assert first == ask(5)
    assert len(set(first)) == 3
    assert first != ask(6)


def test_the_answer_ends_before_a_stop_string(client):
    text = greedy(client, 20).choices[0].message.content
    stop = text[5:9]
    choice = greedy(client, 20, stop=[stop]).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_a_bias_decides(client):
    choice = greedy(client, 4, logit_bias={1025: 100}, logprobs=True).choices[0]
    assert choice.message.content == "It" * 4
    assert [entry.token for entry in choice.logprobs.content] == ["It"] * 4


class Verdict(pydantic.BaseModel):
    good: bool
    better: bool


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(client, is_stream):
    fields = {"model": "tiny", "messages": QUESTION, "response_format": Verdict}
    fields |= {"max_tokens": 800, "temperature": 0}
    if is_stream:
        with client.chat.completions.stream(**fields) as stream:
            found = stream.get_final_completion()
    else:
        found = client.chat.completions.parse(**fields)
    assert isinstance(found.choices[0].message.parsed, Verdict)


def test_a_form_that_cannot_be_is_refused_before_the_stream(client):
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        greedy(client, response_format=wrong, stream=True)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_forced_call_has_the_arguments_its_schema_wants(client, choice):
    tools = {"tools": [LOOK], "tool_choice": choice, "parallel_tool_calls": False}
    with client.chat.completions.stream(
        model="tiny", messages=QUESTION, seed=3, max_tokens=800, **tools
    ) as stream:
        found = stream.get_final_completion().choices[0]
    (call,) = found.message.tool_calls
    assert call.function.name == "look"
    assert call.function.parsed_arguments["where"] in ("left", "right")
    assert isinstance(call.function.parsed_arguments["far"], bool)
    assert found.finish_reason == "tool_calls"
    again = greedy(client, 800, **tools).choices[0]
    assert json.loads(again.message.tool_calls[0].function.arguments).keys() == {"where", "far"}


def test_a_free_choice_of_tools_may_be_text(client):
    choice = greedy(client, tools=[LOOK]).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content


def test_several_prompts_are_answered_together(client):
    prompts = ["It was a very", "She had", "Mr. Darcy"]
    fields = {"model": "tiny", "temperature": 0, "max_tokens": 8}
    alone = [client.completions.create(prompt=one, **fields).choices[0].text for one in prompts]
    together = client.completions.create(prompt=prompts, **fields)
    assert [choice.text for choice in together.choices] == alone
    told = ["", "", ""]
    for chunk in client.completions.create(prompt=prompts, stream=True, **fields):
        told[chunk.choices[0].index] += chunk.choices[0].text
    assert told == alone


def test_context_overflow_is_reported_in_tokens(client):
    long = [{"role": "user", "content": "a b " * 1024}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024") as caught:
        client.chat.completions.create(model="tiny", messages=long, max_tokens=5)
    assert caught.value.code == "context_length_exceeded"
    choice = client.chat.completions.create(
        model="tiny", messages=QUESTION, temperature=0, extra_body={"ignore_eos": True}
    )
    assert choice.usage.total_tokens == 1024
    assert choice.choices[0].finish_reason == "length"


def test_a_template_that_refuses_is_the_clients_error(client):
    with pytest.raises(openai.BadRequestError, match="the roles are") as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "tool", "content": "x", "tool_call_id": "a"}]
        )
    assert caught.value.param == "messages"


async def test_many_clients_are_served_at_once_and_those_that_leave_are_freed(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def ask(place: int) -> str:
            stream = await client.chat.completions.create(
                model="tiny",
                messages=QUESTION,
                seed=place,
                max_tokens=200 if place % 2 else 20,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            text = ""
            async with stream:
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    if place % 2 and len(text) > 10:
                        return "left"
                    if chunk.choices[0].finish_reason:
                        return chunk.choices[0].finish_reason
            return "never ended"

        ends = await asyncio.gather(*[ask(place) for place in range(16)])
    assert ends == ["length", "left"] * 8


def test_langchain_chats_streams_and_calls_tools(url):
    model = ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0, temperature=0)
    found = model.invoke("Hello!", max_tokens=8)
    streamed = "".join(chunk.content for chunk in model.stream("Hello!", max_tokens=8))
    assert streamed == found.content
    forced = model.bind_tools([LOOK], tool_choice="look", parallel_tool_calls=False).invoke(
        "Hello!", max_tokens=800
    )
    assert forced.tool_calls[0]["name"] == "look"
    assert forced.tool_calls[0]["args"]["where"] in ("left", "right")
    shaped = model.with_structured_output(Verdict, method="json_schema").invoke("Hello!")
    assert isinstance(shaped, Verdict)


@pytest.fixture(autouse=True)
def freed(calls: Calls) -> Iterator[None]:
    """After every test the engine has nothing left to do."""
    yield
    eventually(lambda: is_idle(calls, "tiny"), what="the engine is idle")
