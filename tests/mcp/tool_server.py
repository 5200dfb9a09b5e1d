"""An MCP server of the official SDK for tests."""

import asyncio
import os
import sys
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ImageContent, ListToolsResult, TextContent, Tool

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
NAMES = ("add", "fail", "hang", "die", "long", "picture", "variables")


async def on_list(context: Any, params: Any) -> ListToolsResult:
    schema = {"type": "object", "properties": NUMBERS}
    return ListToolsResult(tools=[Tool(name=name, input_schema=schema) for name in NAMES])


async def on_call(context: Any, params: Any) -> CallToolResult:
    name, arguments = params.name, params.arguments or {}
    if name == "hang":
        try:
            await anyio.sleep_forever()
        finally:
            with open(os.environ["MARK"], "w") as file:
                file.write("cancelled")
    if name == "die":
        sys.stderr.write("I have had enough\n")
        sys.stderr.flush()
        os._exit(3)
    if name == "picture":
        picture = ImageContent(data="AAAA", mime_type="image/png")
        return CallToolResult(content=[TextContent(text="see"), picture])
    texts = {
        "add": lambda: str(arguments["a"] + arguments["b"]),
        "long": lambda: "\u00e9" * 5000,
        "variables": lambda: " ".join(sorted(os.environ)),
        "fail": lambda: "no luck",
    }
    return CallToolResult(content=[TextContent(text=texts[name]())], is_error=name == "fail")


async def main() -> None:
    server = Server("tools", on_list_tools=on_list, on_call_tool=on_call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
