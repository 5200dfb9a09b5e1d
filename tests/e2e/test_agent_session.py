"""What a coding agent asks, request by request, of a real model by Anthropic's own client; and the
same model by Ollama's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import ollama
import pytest

from tests.e2e.harness import config, serving
from tests.llm.real_model import real_model
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]
NAME = "smollm2"
SESSION: dict[str, Any] = json.loads((Path(__file__).parent / "agent_session.json").read_text())
TURNS = [
    {
        **SESSION["common"],
        "system": SESSION["system"],
        "tools": SESSION["tools"],
        "messages": SESSION["messages"][: turn["num_messages"]],
        **turn["fields"],
    }
    for turn in SESSION["turns"]
]
SCHEMAS = {tool["name"]: tool["input_schema"] for tool in SESSION["tools"]}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = real_model()
    options = {"kv_cache_memory": 256 << 20, "dtype": "f32"}
    model = config(path.parent, path.name, alias=NAME, llm_options=options)
    with serving(tmp_path_factory.mktemp("agent"), model) as found:
        yield found.http


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[anthropic.Anthropic]:
    base = f"http://127.0.0.1:{port}"
    with anthropic.Anthropic(base_url=base, api_key="none", timeout=PATIENCE) as found:
        yield found


@pytest.fixture(scope="module")
def answers(client: anthropic.Anthropic) -> list[Any]:
    """Those to the turns of the session, in their order."""
    return [ask(client, **turn) for turn in TURNS]


def ask(client: anthropic.Anthropic, *, stream: bool, temperature: float, **body: Any) -> Any:
    """The client's newer versions have no temperature, which older ones and agents send."""
    body["extra_body"] = {"temperature": temperature}
    if not stream:
        return client.beta.messages.create(**body)
    with client.beta.messages.stream(**body) as events:
        return events.get_final_message()


def test_a_turn_is_answered_by_a_call_of_a_tool_or_in_words(answers):
    forced, free, named, words = [[block.type for block in one.content] for one in answers]
    assert (forced, named, words) == (["tool_use"], ["tool_use"], ["text"])
    assert {*free} <= {"tool_use", "text"}
    reasons = [one.stop_reason for one in answers]
    assert [reasons[0], reasons[2]] == ["tool_use"] * 2
    assert {*reasons} <= {"tool_use", "end_turn", "max_tokens"}


def test_calls_have_the_arguments_that_their_tool_takes(answers):
    whole = [one for one in answers if one.stop_reason == "tool_use"]
    uses = [block for one in whole for block in one.content if block.type == "tool_use"]
    assert len(uses) >= 2
    for use in uses:
        jsonschema.validate(use.input, SCHEMAS[use.name])
    assert answers[2].content[0].name == "plan"


def test_the_tokens_of_a_turn_are_counted_as_they_are_used(answers, client):
    for turn, answer in zip(TURNS, answers, strict=True):
        names = {"model", "system", "messages", "tools", "tool_choice"} & {*turn}
        counted = client.messages.count_tokens(**{name: turn[name] for name in names})
        usage = answer.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_prompt_that_was_seen_before_is_read_from_the_cache(answers, client):
    first, again = answers[2].usage, ask(client, **{**TURNS[2], "max_tokens": 1}).usage
    assert again.cache_read_input_tokens > 0
    total = first.input_tokens + first.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == total


def test_a_title_for_the_conversation_is_streamed(client):
    found = ask(client, **SESSION["title"])
    assert found.content[0].text.strip()
    assert found.usage.output_tokens <= SESSION["title"]["max_tokens"]


def test_an_answer_that_was_begun_is_gone_on_with(client):
    question = {"role": "user", "content": "What is the capital of France?"}
    begun = {"role": "assistant", "content": "The capital of France is"}
    found = ask(
        client,
        model=NAME,
        max_tokens=8,
        messages=[question, begun],
        stream=False,
        temperature=0,
    )
    assert "Paris" in found.content[0].text
    assert "capital" not in found.content[0].text


def test_ollamas_client_asks_the_same_model(port):
    with ollama.Client(f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
        assert [one.model for one in client.list().models] == [f"{NAME}:latest"]
        question = [{"role": "user", "content": "What is the capital of France?"}]
        options = {"temperature": 0, "num_predict": 40}
        parts = [*client.chat(NAME, question, options=options, stream=True)]
        assert "".join(part.message.content for part in parts) == "The capital of France is Paris."
        last = parts[-1]
        assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0
        assert last.eval_duration > 0
        whole = client.generate(NAME, question[0]["content"], options=options)
        assert whole.response == "The capital of France is Paris."
        assert whole.eval_count == last.eval_count
