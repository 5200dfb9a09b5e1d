"""Anthropic's own tools: those of clients are offered, those of its server are left out."""

import json

import pytest
from msgspec.structs import replace

from tests.frontends.anthropic.test_messages import ask, block, said
from tests.frontends.openai.serving import spoken

BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {
    "type": "text_editor_20250728",
    "name": "str_replace_based_edit_tool",
    "max_characters": 9,
}
MEMORY = {"type": "memory_20250818", "name": "memory"}
OF_SERVER = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
]


@pytest.fixture
def agent(web):
    web.control.card = replace(web.control.card, tool_format="hermes", max_model_len=4096)
    return web


def test_tools_of_the_client_have_their_known_schemas(agent):
    answer = ask(agent, tools=[BASH, EDITOR, MEMORY])
    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, None)
    tools = {tool["function"]["name"]: tool["function"] for tool in agent.sent.tools}
    assert list(tools) == ["bash", "str_replace_based_edit_tool", "memory"]
    assert list(tools["bash"]["parameters"]["properties"]) == ["command", "restart"]
    commands = tools["memory"]["parameters"]["properties"]["command"]["enum"]
    assert commands == ["view", "create", "str_replace", "insert", "delete", "rename"]


def test_a_call_of_a_clients_tool_is_a_tool_use(agent):
    written = json.dumps({"name": "bash", "arguments": {"command": "ls"}})
    agent.says(*spoken(*f"<tool_call>\n{written}\n</tool_call>"))
    (use,) = ask(agent, tools=[BASH]).json["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "bash", {"command": "ls"})


def test_tools_of_the_server_are_left_out_and_named(agent):
    answer = ask(agent, tools=[*OF_SERVER, BASH], path="/v1/messages")
    assert answer.status == 200
    assert answer.headers["x-ignored-fields"] == "tools[0], tools[1]"
    assert [tool["function"]["name"] for tool in agent.sent.tools] == ["bash"]


@pytest.mark.parametrize(
    "content", [[{"type": "web_search_result", "title": "t", "url": "u"}],
                {"type": "web_search_tool_result_error", "error_code": "unavailable"}]
)  # fmt: skip
def test_past_blocks_of_the_servers_tools_are_left_out_and_named(agent, content):
    use = block("server_tool_use", id="1", name="web_search", input={"query": "q"})
    result = block("web_search_tool_result", tool_use_id="1", content=content)
    turns = said(use, result, block("text", text="Sun."), role="assistant")
    answer = ask(agent, [*turns, {"role": "user", "content": "Thanks"}])
    assert answer.status == 200
    assert answer.headers["x-ignored-fields"] == "messages[1].content[0], messages[1].content[1]"
    assert [one["content"] for one in agent.sent.messages] == ["hello", "Sun.", "Thanks"]


def test_a_tool_without_a_name_is_refused(agent):
    answer = ask(agent, tools=[{"input_schema": {"type": "object"}}])
    assert (answer.status, "tools[0].name is missing" in answer.error["message"]) == (400, True)
