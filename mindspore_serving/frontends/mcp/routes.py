"""POST /mcp: streamable HTTP without sessions; the official SDK speaks the protocol.

Each request is answered by one JSON object, so nothing is kept between requests, and any process
may answer.
"""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from mindspore_serving import __version__, extras, log
from mindspore_serving.aio import on_thread
from mindspore_serving.errors import NotFound, ServingError, Unsupported
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.mcp import tools
from mindspore_serving.frontends.operation import JSON, STRING, Body, to_object
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.wire import status

_FAILED = -32603  # JSON-RPC: internal error
_INVALID = -32600  # JSON-RPC: invalid request


def to_response(error: Exception) -> Response:
    """Return the answer for an error, which is being handled, in JSON-RPC's form."""
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        error = ServingError("The server failed; its log says why.")
    http = status.of(error.code).http
    problem = {"code": _INVALID if http < 500 else _FAILED, "message": str(error)}
    body = {"jsonrpc": "2.0", "id": None, "error": problem}
    return to_json(body, http, status.retry_after(error))


async def answer(state: AppState, http: Request) -> Response:
    """Answer a message of a client."""
    body = await read_json(http, state.max_body, state.models.limits)
    try:
        manager = await on_thread("imports", _import_manager)
    except ModuleNotFoundError as error:
        raise Unsupported(extras.missing(error, "POST /mcp")) from None
    timeout = request_options_of(http).timeout
    server = _make_server(state, timeout)
    # Each request has a session manager of the SDK, which keeps nothing beyond it.
    session = manager(
        server, json_response=True, stateless=True, max_request_body_size=state.max_body
    )
    return await while_connected(http, _exchange(session, http, body))


def _import_manager() -> Any:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    return StreamableHTTPSessionManager


def _make_server(state: AppState, timeout: float | None) -> Any:
    """Return the SDK's server of the tools."""
    from mcp.server import Server
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        INVALID_PARAMS,
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        TextContent,
        Tool,
    )

    async def on_list(context: Any, params: Any) -> ListToolsResult:
        rows = tools.list_tools(state)
        return ListToolsResult(tools=[Tool.model_validate(row) for row in rows])

    async def on_call(context: Any, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        try:
            outputs, problem = await tools.call_tool(state, params.name, arguments, timeout)
        except NotFound as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        if outputs is None:
            return CallToolResult(content=[TextContent(text=problem)], is_error=True)
        text = msgspec.json.encode(outputs).decode()
        return CallToolResult(content=[TextContent(text=text)], structured_content=outputs)

    return Server(
        "mindspore-serving", version=__version__, on_list_tools=on_list, on_call_tool=on_call
    )


async def _exchange(manager: Any, http: Request, body: bytes) -> Response:
    """Let the SDK answer a request whose body has been read."""
    received = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[Message] = []

    async def receive() -> Message:
        for message in received:
            return message
        await asyncio.get_running_loop().create_future()  # `while_connected` sees disconnects
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [pair for pair in http.scope["headers"] if pair[0] != b"accept"]
    scope = {**http.scope, "headers": [*headers, (b"accept", b"application/json")]}
    async with manager.run():
        await manager.handle_request(scope, receive, send)
    start, *pieces = sent
    response = Response(b"".join([piece.get("body", b"") for piece in pieces]), start["status"])
    response.raw_headers = start["headers"]
    return response


PROTOCOL = HttpProtocol(
    "mcp",
    to_response,
    title="MCP",
    about="The Model Context Protocol, streamable HTTP: methods of servables as tools.",
    errors={JSON: to_object({"jsonrpc": STRING, "id": {}, "error": {"type": "object"}})},
)
_MESSAGE = to_object(
    {"jsonrpc": {"const": "2.0"}, "id": {}, "method": STRING, "params": {"type": "object"}},
    *("id", "params"),
)
_ANSWER = to_object({"jsonrpc": STRING, "id": {}, "result": {"type": "object"}})

ROUTES = (
    HttpRoute(
        "POST",
        "/mcp",
        answer,
        "List methods of servables as tools, and call them",
        {JSON: _ANSWER},
        protocol=PROTOCOL,
        body=Body(_MESSAGE, example={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
    ),
)
