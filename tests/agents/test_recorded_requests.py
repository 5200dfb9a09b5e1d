"""Requests of programs that do not run here, written from their public source: each is answered as
the program reads it.

A file of `requests` is one program: where its fields are found, its headers, and what it sends.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Event
from mindspore_serving.core.reading_messages import Embedded
from tests.frontends.openai.serving import Answer, Web, serving, spoken, whole

FILES = sorted(Path(__file__).with_name("requests").glob("*.json"))
PROGRAMS = [json.loads(path.read_text()) for path in FILES]
REQUESTS = [
    pytest.param(program["headers"], request, id=f"{program['program']}: {request['what']}")
    for program in PROGRAMS
    for request in program["requests"]
]
TEXT = "Hello!"
ARGUMENTS = {"path": "notes.txt"}


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving() as running:
        running.control.card = replace(
            running.control.card, tool_format="hermes", max_model_len=8192
        )
        running.inference.script = script
        yield running


def script(request: Any) -> list[Event]:
    """Call the first tool, unless its result is there; else answer."""
    if hasattr(request, "prompts"):
        rows = np.ones(2 * len(request.prompts), dtype="<f4")
        return [Embedded(rows.tobytes(), 2, [3] * len(request.prompts))]
    if not calls(request.tools, request.messages):
        return whole(*spoken(*(TEXT if request.is_stream else [TEXT])))
    name = request.tools[0]["function"]["name"]
    written = json.dumps({"name": name, "arguments": ARGUMENTS})
    text = f"<tool_call>\n{written}\n</tool_call>"
    return whole(*[Chunk(0, letter, (65,)) for letter in text], Chunk(0, "", (2,), None, "stop"))


def calls(tools: Any, messages: Any) -> bool:
    return bool(tools) and all(message["role"] != "tool" for message in messages)


@pytest.mark.parametrize(("headers", "request_"), REQUESTS)
def test_a_recorded_request_is_answered(
    web: Web, headers: dict[str, str], request_: dict[str, Any]
) -> None:
    body = request_.get("body")
    answer = web.call(request_.get("verb", "POST"), request_["path"], body, headers)
    assert answer.status == 200, answer.body
    READERS[request_["path"]](answer, body)


def test_each_program_names_where_its_fields_are_answer() -> None:
    assert len(PROGRAMS) == 6
    for program in PROGRAMS:
        assert program["source"]


def read_chat(answer: Answer, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        assert answer.json["object"] == "chat.completion"
        (choice,) = answer.json["choices"]
        read_message(choice["message"], choice["finish_reason"], body)
        assert answer.json["usage"]["total_tokens"] > 0
        return
    chunks = answer.chunks
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    usage = [chunk for chunk in chunks if chunk.get("usage")]
    if "stream_options" in body:
        assert usage == chunks[-1:]
        assert usage[0]["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    read_message(joined([choice["delta"] for choice in choices]), reasons[-1], body)


def joined(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, as strict clients read it: each delta of a call has a function."""
    message: dict[str, Any] = {"content": "".join(delta.get("content") or "" for delta in deltas)}
    for delta in deltas:
        for call in delta.get("tool_calls") or ():
            made = message.setdefault("tool_calls", [])
            if call["index"] == len(made):
                made.append({"id": call["id"], "type": call["type"], "function": {
                    "name": call["function"]["name"], "arguments": ""}})  # fmt: skip
            made[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def read_message(message: dict[str, Any], reason: str, body: dict[str, Any]) -> None:
    if not calls(body.get("tools"), body["messages"]):
        assert (message["content"], reason) == (TEXT, "stop")
        return
    (call,) = message["tool_calls"]
    assert (call["type"], bool(call["id"]), reason) == ("function", True, "tool_calls")
    assert call["function"]["name"] == body["tools"][0]["function"]["name"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


def read_completion(answer: Answer, body: dict[str, Any]) -> None:
    parts = answer.chunks if body["stream"] else [answer.json]
    assert all(part["object"] == "text_completion" for part in parts)
    assert "".join(part["choices"][0]["text"] for part in parts) == TEXT


def read_response(answer: Answer, body: dict[str, Any]) -> None:
    events = [
        json.loads(line[6:]) for line in answer.body.decode().split("\n") if line[:5] == "data:"
    ]
    assert answer.headers["x-ignored-fields"].startswith("tools[0]")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert ("".join(deltas), events[-1]["type"]) == (TEXT, "response.completed")


def read_vectors(answer: Answer, body: dict[str, Any]) -> None:
    count = len(body["input"]) if isinstance(body["input"], list) else 1
    assert [row["embedding"] for row in answer.json["data"]] == [[1.0, 1.0]] * count
    assert answer.json["usage"]["total_tokens"] == 3 * count


def read_models(answer: Answer, body: None) -> None:
    assert "toy" in [model["id"] for model in answer.json["data"]]


READERS = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/responses": read_response,
    "/v1/embeddings": read_vectors,
    "/v1/models": read_models,
}
