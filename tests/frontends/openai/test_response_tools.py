"""Kinds of tools of /v1/responses: what the model sees, and the items that its calls become."""

import json

import pytest
from msgspec.structs import replace
from openai.types.responses import ResponseCustomToolCall, ResponseFunctionToolCall

from mindspore_serving.core.llm_messages import Chunk
from tests.frontends.openai.serving import CARD, spoken
from tests.frontends.openai.test_responses import respond, streamed

PATCH = '*** Begin Patch\n*** Add File: a\n+"é"\n*** End Patch\n'
CUSTOM = {"type": "custom", "name": "patch", "description": "Edit.", "format": {"type": "text"}}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__files__",
    "description": "Files.",
    "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object"}},
        {"type": "custom", "name": "write"},
    ],
}
CALLS = {  # by the type of the tool: what the model calls, and the field of the item
    "local_shell": (
        {"command": ["ls", "-l"]},
        "local_shell_call",
        {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}}},
    ),
    "shell": (
        {"commands": ["ls"], "timeout_ms": 5},
        "shell_call",
        {"action": {"commands": ["ls"], "timeout_ms": 5}},
    ),
    "apply_patch": (
        {"type": "delete_file", "path": "a"},
        "apply_patch_call",
        {"operation": {"type": "delete_file", "path": "a", "diff": ""}},
    ),
}


@pytest.fixture
def agent(web):
    """A model that calls tools as Hermes does."""
    web.control.card = replace(CARD, tool_format="hermes", max_model_len=4096)
    return web


def calls(web, name, arguments):
    """Let the model call a tool, in pieces of one character."""
    written = json.dumps({"name": name, "arguments": arguments})
    web.says(*spoken(*f"<tool_call>\n{written}\n</tool_call>", reason="stop"))


def offered(web):
    return {tool["function"]["name"]: tool["function"] for tool in web.sent.tools}


def test_a_custom_tools_input_is_text(agent):
    calls(agent, "patch", {"input": PATCH})
    (item,) = respond(agent, tools=[CUSTOM]).json["output"]
    assert ResponseCustomToolCall.model_validate(item, strict=True)
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", PATCH)
    assert offered(agent)["patch"]["parameters"]["required"] == ["input"]


def test_a_custom_tools_input_streams_without_its_escapes(agent):
    calls(agent, "patch", {"input": PATCH + "\U0001f600\\"})
    events = streamed(agent, tools=[CUSTOM])
    deltas = [one["delta"] for one in events if one["type"].endswith("input.delta")]
    (done,) = [one for one in events if one["type"] == "response.custom_tool_call_input.done"]
    assert len(deltas) > 10
    assert "".join(deltas) == done["input"] == PATCH + "\U0001f600\\"
    assert events[-1]["response"]["output"][0]["input"] == done["input"]


def test_arguments_without_an_input_are_the_input(agent):
    calls(agent, "patch", {"patch": "x"})
    events = streamed(agent, tools=[CUSTOM])
    (done,) = [one for one in events if one["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == '{"patch": "x"}'


def test_a_regex_holds_a_custom_tools_input(agent):
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}
    respond(agent, tools=[CUSTOM | {"format": grammar}])
    assert '"pattern": "^(?:[a-c]+)$"' in agent.answer_format.grammar.source


def test_a_lark_grammar_is_shown_to_the_model(agent):
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x" | "(" start ")"'}
    respond(agent, tools=[CUSTOM | {"format": grammar}])
    assert offered(agent)["patch"]["description"].startswith("Edit.\n\n")
    assert offered(agent)["patch"]["description"].endswith(grammar["definition"])


@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_a_clients_built_in_tool_have_its_item(agent, kind):
    arguments, item_type, field = CALLS[kind]
    calls(agent, kind, arguments)
    events = streamed(agent, tools=[{"type": kind}])
    (item,) = events[-1]["response"]["output"]
    assert item.items() >= {"type": item_type, "status": "completed", **field}.items()
    names = [one["type"] for one in events if "output_item" in one["type"]]
    assert names == ["response.output_item.added", "response.output_item.done"]


def test_tools_in_a_namespace_are_offered_under_its_name(agent):
    calls(agent, "mcp__files__read", {})
    (item,) = respond(agent, tools=[NAMESPACE]).json["output"]
    assert ResponseFunctionToolCall.model_validate(item, strict=True)
    assert (item["namespace"], item["name"]) == ("mcp__files__", "read")
    assert list(offered(agent)) == ["mcp__files__read", "mcp__files__write"]


def test_a_long_name_in_a_namespace_is_shortened(agent):
    space = {**NAMESPACE, "name": "n" * 64}
    assert respond(agent, tools=[space]).status == 200
    assert [len(name) for name in offered(agent)] == [64, 64]


HISTORY = [
    {"role": "user", "content": "a"},
    {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
    {"type": "local_shell_call", "call_id": "2", "status": "completed",
     "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "2", "output": "a.txt"},
    {"type": "shell_call", "call_id": "3", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "3",
     "output": [{"stdout": "b", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "apply_patch_call", "call_id": "4", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "4", "status": "failed"},
    {"type": "function_call", "call_id": "5", "namespace": "ns", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "5", "output": "r"},
]  # fmt: skip


def test_past_calls_become_calls_of_the_functions_that_the_model_saw(agent):
    assert respond(agent, HISTORY).status == 200
    messages = agent.sent.messages
    called = [call["function"] for one in messages for call in one.get("tool_calls", ())]
    assert [one["name"] for one in called] == [
        "patch", "local_shell", "shell", "apply_patch", "ns__f"
    ]  # fmt: skip
    assert called[0]["arguments"] == {"input": "x"}
    assert called[3]["arguments"] == {"type": "delete_file", "path": "a"}
    results = [one["content"] for one in messages if one["role"] == "tool"]
    assert results[:2] + results[3:] == ["done", "a.txt", "failed", "r"]
    assert json.loads(results[2])[0]["stdout"] == "b"


def test_items_of_other_servers_are_left_out_and_named(agent):
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    answer = respond(agent, [HISTORY[0], search, {"type": "ghost_snapshot"}])
    assert answer.status == 200
    assert answer.headers["x-ignored-fields"] == "input[1], input[2]"
    assert len(agent.sent.messages) == 1


def test_a_reference_is_to_an_item_of_the_previous_response(agent):
    agent.says(Chunk(0, "Hi!", (72,), None, "stop"))
    first = respond(agent).json
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    said = [reference, HISTORY[0]]
    assert respond(agent, said, previous_response_id=first["id"]).status == 200
    assert [one["role"] for one in agent.sent.messages] == ["user", "assistant", "user"]
    refused = respond(agent, said)
    assert (refused.status, refused.error["param"]) == (400, "input[0].id")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"given": [{"type": "function_cal"}]}, "input[0].type"),
        ({"given": [{"type": "shell_call", "call_id": "1"}]}, "input[0].action"),
        ({"given": [{"type": "shell_call_output", "output": []}]}, "input[0].call_id"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [CUSTOM | {"format": {"type": "json"}}]}, "tools[0].format.type"),
        ({"tools": [CUSTOM | {"format": {"type": "grammar"}}]}, "tools[0].format.syntax"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "shell"}, {"type": "function", "name": "shell"}]}, "tools"),
    ],
)
def test_invalid_tools_and_items_name_the_field(agent, fields, param):
    answer = respond(agent, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("choice", [{"type": "custom", "name": "patch"}, {"type": "shell"}])
def test_a_choice_of_a_tool_requires_its_function(agent, choice):
    calls(agent, choice.get("name", "shell"), {"input": "x"})
    assert respond(agent, tools=[CUSTOM, {"type": "shell"}], tool_choice=choice).status == 200
    assert agent.sent.tool_choice.name == choice.get("name", "shell")


@pytest.mark.parametrize(
    ("tool", "argument", "left"),
    [
        (CUSTOM, {"input": "abc"}, {"input": "abc"}),
        ({"type": "shell"}, {"commands": ["abc"]}, {"action": {"commands": []}}),
    ],
)
def test_a_call_that_is_cut_off_is_incomplete(agent, tool, argument, left):
    written = json.dumps({"name": tool.get("name", "shell"), "arguments": argument})
    begun = f"<tool_call>\n{written.partition('abc')[0]}abc"
    agent.says(*spoken(*begun, reason="length"))
    events = streamed(agent, tools=[tool])
    assert events[-1]["type"] == "response.incomplete"
    (item,) = events[-1]["response"]["output"]
    assert item.items() >= {"status": "incomplete", **left}.items()
