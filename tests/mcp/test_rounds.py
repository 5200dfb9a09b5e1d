"""Tools of real MCP servers, called for clients of Responses and of Anthropic's Messages."""

import json

import pytest
from openai.types.responses import ResponseCompletedEvent
from openai.types.responses.response_output_item import McpCall, McpListTools

from tests.frontends.openai.serving import spoken, whole
from tests.mcp.conftest import SKIP, calling, rounds

pytest.importorskip("mcp", reason=SKIP)
TOOLS = {"type": "mcp", "server_label": "tools", "require_approval": "never"}
ADD = {"a": 2, "b": 40}


def respond(web, tools=(TOOLS,), **fields):
    return web.call("POST", "/v1/responses", {"input": "2 and 40?", "tools": [*tools], **fields})


def message(web, **fields):
    body = {
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "2 and 40?"}],
        "mcp_servers": [{"type": "url", "name": "tools"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "tools"}],
    }
    return web.call("POST", "/v1/messages", {**body, **fields})


def events(answer):
    lines = [line for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_response_has_the_calls_and_their_results(agent):
    rounds(agent, calling(("tools__add", ADD)))
    answer = respond(agent).json
    listed, call, said = answer["output"]
    assert McpListTools.model_validate(listed, strict=True).server_label == "tools"
    assert {tool["name"] for tool in listed["tools"]} >= {"add", "fail"}
    assert McpCall.model_validate(call, strict=True).output == "42"
    assert json.loads(call["arguments"]) == ADD
    assert said["content"][0]["text"] == "Done"
    assert answer["usage"]["input_tokens"] == 6  # of both rounds
    role, result = agent.sent.messages[-2:]
    assert role["tool_calls"][0]["function"] == {"name": "tools__add", "arguments": ADD}
    assert result["content"] == "42"
    assert result["tool_call_id"] == role["tool_calls"][0]["id"]


def test_calls_stream_as_items(agent):
    rounds(agent, calling(("tools__add", ADD), ("tools__fail", {})))
    found = events(respond(agent, stream=True))
    names = [one["type"].removeprefix("response.") for one in found]
    assert [name for name in names if name.startswith("mcp_call.")] == [
        *["mcp_call.in_progress"] * 2,
        "mcp_call.completed",
        "mcp_call.failed",
    ]
    assert names.index("mcp_list_tools.completed") < names.index("mcp_call.in_progress")
    deltas = "".join(one["delta"] for one in found if one["type"].endswith("arguments.delta"))
    assert deltas == "".join(
        one["arguments"] for one in found if one["type"].endswith("arguments.done")
    )
    assert [one["sequence_number"] for one in found] == [*range(len(found))]
    done = ResponseCompletedEvent.model_validate(found[-1])
    output = found[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", *["mcp_call"] * 2, "message"]
    assert output[2]["error"]["content"] == [{"type": "text", "text": "no luck"}]
    assert output[2]["status"] == "failed"
    finished = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    assert finished == output
    assert done.response.status == "completed"


def test_past_calls_are_read_as_calls_and_results(agent):
    rounds(agent, calling(("tools__add", ADD)))
    first = respond(agent).json
    agent.inference.calls.clear()
    follow = {"previous_response_id": first["id"], "input": "again", "tools": []}
    answer = agent.call("POST", "/v1/responses", follow)
    assert answer.status == 200, answer.body
    roles = [one["role"] for one in agent.sent.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert agent.sent.messages[2]["content"] == "42"


def test_calls_of_the_clients_functions_end_the_response(agent):
    own = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    rounds(agent, calling(("tools__add", ADD), ("mine", {"x": 1})))
    answer = respond(agent, tools=[TOOLS, own]).json
    types = [item["type"] for item in answer["output"]]
    assert types == ["mcp_list_tools", "mcp_call", "function_call"]
    assert answer["output"][1]["output"] == "42"
    assert len(agent.inference.calls) == 1


def test_only_allowed_tools_are_offered(agent):
    rounds(agent)
    assert respond(agent, tools=[{**TOOLS, "allowed_tools": ["add"]}]).status == 200
    assert [tool["function"]["name"] for tool in agent.sent.tools] == ["tools__add"]


def test_a_request_has_a_limited_number_of_calls(agent):
    forever = calling(*[("tools__add", ADD)] * 20)
    agent.inference.calls.clear()
    agent.inference.script = lambda request: whole(
        *(spoken("stop") if request.tool_choice.mode == "none" else forever)
    )
    output = respond(agent).json["output"]
    calls = [item for item in output if item["type"] == "mcp_call"]
    assert [call["error"] is None for call in calls] == [True] * 32 + [False] * 8
    assert len(agent.inference.calls) == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"server_label": "tool"}, 'tools[0].server_label is "tool", expected one of: tools'),
        ({"server_url": "http://127.0.0.1:1/mcp"}, "another URL than the server"),
        ({"require_approval": "always"}, 'expected "never"'),
        ({"authorization": "hunter2"}, "the operator lists servers"),
        ({"headers": {"x": "hunter2"}}, "the operator lists servers"),
        ({"allowed_tools": ["ad"]}, "did you mean 'add'?"),
    ],
)
def test_a_response_cannot_choose_the_server_of_a_name(agent, change, text):
    answer = respond(agent, tools=[{**TOOLS, **change}])
    assert answer.status == 400
    assert text in answer.error["message"]
    assert "hunter2" not in answer.error["message"]


def test_a_server_that_lies_is_an_error_of_its_requests_alone(agent):
    rounds(agent)
    answer = respond(agent, tools=[{**TOOLS, "server_label": "twice"}])
    assert answer.status == 502
    assert answer.error["message"] == "MCP server 'twice' failed: it lists the tool 'add' twice"
    assert respond(agent).status == 200


def test_a_server_that_hangs_is_a_failed_call(agent):
    rounds(agent, calling(("hung__add", {})))
    answer = respond(agent, tools=[{**TOOLS, "server_label": "hung"}]).json
    call = answer["output"][1]
    (problem,) = call["error"]["content"]
    assert problem["text"] == "MCP server 'hung' did not answer within 0.2 s"
    assert agent.sent.messages[-1]["content"].startswith("Error: MCP server 'hung'")
    assert answer["status"] == "completed"


def test_messages_have_mcp_blocks(agent):
    rounds(agent, calling(("tools__add", ADD), ("tools__fail", {})))
    answer = message(agent).json
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == [*["mcp_tool_use"] * 2, *["mcp_tool_result"] * 2, "text"]
    use, _, result, failed, _ = answer["content"]
    assert (use["server_name"], use["name"], use["input"]) == ("tools", "add", ADD)
    assert result == {
        "type": "mcp_tool_result",
        "tool_use_id": use["id"],
        "is_error": False,
        "content": [{"type": "text", "text": "42"}],
    }
    assert failed["is_error"]
    assert answer["stop_reason"] == "end_turn"
    again = [
        {"role": "user", "content": "2 and 40?"},
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": "again"},
    ]
    rounds(agent)
    assert message(agent, messages=again).status == 200
    roles = [one["role"] for one in agent.sent.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


def test_messages_stream_mcp_blocks(agent):
    rounds(agent, calling(("tools__add", ADD)))
    found = events(message(agent, stream=True))
    starts = [one["content_block"] for one in found if one["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["mcp_tool_use", "mcp_tool_result", "text"]
    assert starts[0]["server_name"] == "tools"
    assert starts[1]["tool_use_id"] == starts[0]["id"]
    assert starts[1]["content"] == [{"type": "text", "text": "42"}]
    assert sum(one["type"] == "content_block_stop" for one in found) == 3
    assert found[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mcp_servers": [{"name": "x", "url": "http://h/"}]}, "one of mcp_servers"),
        (
            {"mcp_servers": [{"name": "tools", "url": "http://169.254.169.254/"}]},
            "another URL than the server",
        ),
        (
            {"mcp_servers": [{"name": "tools", "authorization_token": "hunter2"}]},
            "the operator lists servers",
        ),
    ],
)
def test_a_message_cannot_choose_the_server_of_a_name(agent, fields, text):
    answer = message(agent, **fields)
    assert answer.status == 400
    assert text in answer.error["message"]


def test_toolsets_choose_tools(agent):
    rounds(agent)
    some = {"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}}
    less = {"configs": {"add": {"enabled": False}}}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "tools"}
    assert message(agent, tools=[{**toolset, **some}]).status == 200
    assert [tool["function"]["name"] for tool in agent.sent.tools] == ["tools__add"]
    assert message(agent, tools=[{**toolset, **less}]).status == 200
    assert "tools__add" not in [tool["function"]["name"] for tool in agent.sent.tools]
