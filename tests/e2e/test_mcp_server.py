"""POST /mcp: the official client lists the methods of servables as tools, and calls them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.errors import UpstreamFailed
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.mcp.servers import McpServers
from mindspore_serving.process.child_log import ChildLog
from tests.e2e.harness import Calls, config, serving, write_servable

mcp = pytest.importorskip("mcp", reason="needs the SDK: pip install 'mindspore-serving[mcp]'")

KEY = "a-key-that-is-long-enough"
HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "Content-Type": "application/json",
}
SOURCE = """
from mindspore_serving.core.value import Signature, TensorSpec

def double(x):
    if x.sum() > 100:
        raise ValueError("too large")
    return x * 2
double.signature = Signature(
    (TensorSpec("x", np.dtype("float32"), (-1, 2)),),
    (TensorSpec("y", np.dtype("float32"), (-1, 2)),),
)
model = register.declare_model(double, model_format="Python")

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(model, x, outputs_count=1)

@method("text")
def show(value):
    return type(value).__name__

@method("size")
def measure(value):
    return len(value)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place = tmp_path_factory.mktemp("mcp")
    write_servable(place, "toy", SOURCE)
    with serving(place, config(place, "toy"), api_keys=[KEY]) as calls:
        yield calls


def use(calls: Calls, *steps: tuple[str, dict[str, Any]], mode: str = "auto") -> list[Any]:
    """The tools, then the result of each call."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def run() -> list[Any]:
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{calls.http}/mcp"
        async with httpx2.AsyncClient(headers=headers) as http:
            transport = streamable_http_client(url, http_client=http)
            async with mcp.Client(transport, mode=mode) as client:
                listed = (await client.list_tools()).tools
                return [listed, *[await client.call_tool(*step) for step in steps]]

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_official_client_calls_a_method(server: Calls, mode: str) -> None:
    steps = ("toy__predict", {"x": [1, 2.5]}), ("toy__measure", {"value": {"b64": "AAEC"}})
    tools, doubled, measured = use(server, *steps, mode=mode)
    assert {tool.name for tool in tools} == {"toy__predict", "toy__show", "toy__measure"}
    schema = next(tool.input_schema for tool in tools if tool.name == "toy__predict")
    assert schema["required"] == ["x"]
    assert doubled.structured_content == {"y": [2.0, 5.0]}
    assert not doubled.is_error
    assert json.loads(doubled.content[0].text) == {"y": [2.0, 5.0]}
    assert measured.structured_content == {"size": 3}


def test_errors_of_methods_are_results(server: Calls) -> None:
    steps = ("toy__predict", {"x": [99, 99]}), ("toy__predict", {"y": [1, 2]})
    _, failed, wrong = use(server, *steps)
    assert failed.is_error
    assert "too large" in failed.content[0].text
    assert wrong.is_error
    assert "x" in wrong.content[0].text


def test_an_unknown_tool_is_an_error_of_the_protocol(server: Calls) -> None:
    params = {"name": "toy__predikt", "arguments": {}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    status, body = server.http_call("POST", "/mcp", json.dumps(message).encode(), HEADERS)
    assert (status, json.loads(body)["id"]) == (200, 7)
    problem = json.loads(body)["error"]
    text = "There is no tool 'toy__predikt'; did you mean 'toy__predict'?"
    assert problem == {"code": -32602, "message": text}


def test_refusals_have_the_form_of_the_protocol(server: Calls) -> None:
    status, body = server.http_call("POST", "/mcp", b"{}", {"Content-Type": "application/json"})
    assert status == 401
    assert json.loads(body)["error"]["message"]
    for bad in (b"{", b"[]", b'{"jsonrpc":"2.0","id":1}', b"[" * 1000, b'"x"'):
        status, body = server.http_call("POST", "/mcp", bad, HEADERS)
        assert status == 400, body
        assert json.loads(body)["error"]["code"] < 0
    status, _ = server.http_call("GET", "/mcp", headers=HEADERS)
    assert status == 405


def test_our_client_calls_a_server_by_its_url(server: Calls, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.http}/mcp"
    listed = {
        "right": McpServerConfig(url=url, headers={"Authorization": f"Bearer {KEY}"}),
        "wrong": McpServerConfig(url=url),
    }
    loop = BackgroundLoop()
    servers = McpServers(listed, lambda name: ChildLog(tmp_path / name))
    try:
        tools = {tool.name: tool for tool in loop.run(servers.tools("right"))}
        text, has_failed = loop.run(servers.call(tools["toy__predict"], {"x": [1, 2]}, ""))
        assert (json.loads(text), has_failed) == ({"y": [2.0, 4.0]}, False)
        with pytest.raises(UpstreamFailed, match="MCP server 'wrong' failed: "):
            loop.run(servers.tools("wrong"))
    finally:
        loop.run(servers.close())
        loop.close()
