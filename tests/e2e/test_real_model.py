"""A real model, in a GGUF file, behind a real server: what it answers makes sense."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.harness import Calls, config, serving
from tests.llm.real_model import real_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
NAME = "smollm2"
QUESTION = "What is the capital of France?"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "city": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    path = real_model()
    options = {"kv_cache_memory": 256 << 20, "dtype": "f32"}
    model = config(path.parent, path.name, alias=NAME, llm_options=options)
    with serving(tmp_path_factory.mktemp("real"), model) as found:
        yield found


def chat(calls: Calls, *texts: str, **options: Any) -> dict[str, Any]:
    """The model's message after `texts`, which user and assistant say in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 40, **options}
    status, reply = calls.http_call("POST", "/v1/chat/completions", json.dumps(body))
    assert status == 200, reply
    return dict(json.loads(reply)["choices"][0]["message"])


def complete(calls: Calls, prompt: str, **options: Any) -> str:
    body = {"model": NAME, "prompt": prompt, "temperature": 0, "max_tokens": 12, **options}
    status, reply = calls.http_call("POST", "/v1/completions", json.dumps(body))
    assert status == 200, reply
    return str(json.loads(reply)["choices"][0]["text"])


def test_the_model_knows_the_capital_of_france(calls):
    assert chat(calls, QUESTION)["content"] == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("What is the chemical symbol for water?", "H2O"),
        ("How many days are in a week?", "7"),
        ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ],
)
def test_the_model_knows_facts(question: str, word: str, calls):
    assert word in chat(calls, question)["content"]


def test_the_model_continues_a_text(calls):
    assert "Paris" in complete(calls, "The Eiffel Tower stands in the city of")


def test_a_schema_is_filled_from_a_sentence(calls):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    text = "Anna is 31 years old and lives in Oslo. Give her name, age and city as JSON."
    answer = json.loads(chat(calls, text, response_format=form)["content"])
    assert answer == {"name": "Anna", "age": 31, "city": "Oslo"}


def test_a_tool_is_called_where_a_call_is_required(calls):
    answer = chat(calls, "What is the weather in Paris?", tools=[WEATHER], tool_choice="required")
    (call,) = answer["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_a_tool_is_called_in_the_generic_form_where_the_model_is_free_to(calls):
    answer = chat(calls, "What is the weather in Paris?", tools=[WEATHER])
    (call,) = answer["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_an_answer_in_words_goes_with_tools(calls):
    answer = chat(calls, "Hello! How are you?", tools=[WEATHER])
    assert answer["content"]
    assert "tool_calls" not in answer


def test_the_model_remembers_earlier_messages(calls):
    said = ["I have a dog called Rex.", "Rex is a great name for a dog!"]
    answer = chat(calls, *said, "What is the name of my dog?")
    assert "Rex" in answer["content"]


def test_the_model_finds_a_needle_in_a_long_prompt(calls):
    days = [f"On day {i} the weather was mild and nothing happened." for i in range(20)]
    days.insert(12, "The secret password is BLUEBERRY.")
    answer = chat(calls, f"{' '.join(days)}\n\nWhat is the secret password?")
    assert "BLUEBERRY" in answer["content"]


@pytest.mark.parametrize(
    "text",
    [
        "日本の首都は東京",
        "Żółta łódź",
        pytest.param("Москва — столица", marks=pytest.mark.long),
        "😀👍🏽",
        pytest.param("مرحبا", marks=pytest.mark.long),
    ],
)
def test_other_scripts_come_back_as_they_went_in(text: str, calls):
    """The model repeats what is there three times."""
    prompt = f"1. {text}\n2. {text}\n3. {text}\n4."
    assert complete(calls, prompt, max_tokens=40, stop=["\n"]).strip() == text
