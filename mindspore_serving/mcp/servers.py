"""The MCP servers of the operator's list, on an event loop of their own.

What servers send is parsed and checked there, so that no flood of theirs delays the requests of
others.  Each call is logged with its server, tool, caller, size and outcome, without its content.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mindspore_serving import extras, log
from mindspore_serving.aio import BackgroundLoop, on_thread
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.mcp.names import McpTool
from mindspore_serving.process.child_log import ChildLog

if TYPE_CHECKING:
    from mindspore_serving.mcp.connection import McpConnection

MAX_CALLS = 32
"""Most calls of tools for one request of a client."""


class McpServers:
    """Servers by name; `open_log` opens the log of a process."""

    def __init__(
        self, configs: Mapping[str, McpServerConfig], open_log: Callable[[str], ChildLog]
    ) -> None:
        """Prepare connections; raises StartError if the SDK is not installed."""
        try:
            from mindspore_serving.mcp import connection
        except ModuleNotFoundError as error:
            raise StartError(extras.missing(error, "--mcp-config")) from None
        self._module = connection
        self._configs = configs
        self._open_log = open_log
        self._loop = BackgroundLoop()
        self._connections: dict[str, McpConnection] = {}  # used on the loop

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the servers."""
        return tuple(self._configs)

    def url_of(self, name: str) -> str | None:
        """Return the URL of a server, None if it is a process."""
        return self._configs[name].url

    async def tools(self, name: str) -> tuple[McpTool, ...]:
        """Return the tools of a server.  Raises UpstreamFailed or UpstreamLate."""
        return await self._loop.start(self._tools(name))

    async def call(self, tool: McpTool, arguments: dict[str, Any], owner: str) -> tuple[str, bool]:
        """Call a tool for `owner`; return the text of its result, and whether it failed.

        A server that fails is the text of a result too: the model may go on without it.
        """
        started, outcome, text = time.monotonic(), "cancelled", ""
        try:
            text, has_failed = await self._loop.start(self._call(tool, arguments))
            outcome = "failed" if has_failed else "ok"
        except ServingError as error:
            outcome, text, has_failed = type(error).__name__, str(error), True
        finally:
            seconds = round(time.monotonic() - started, 3)
            row = {"server": tool.server, "tool": tool.name, "caller": owner, "outcome": outcome}
            log.event("mcp_call", {**row, "seconds": seconds, "num_characters": len(text)})
        return text, has_failed

    async def close(self) -> None:
        """End all connections and processes."""
        await self._loop.start(self._close())
        await on_thread("mcp", self._loop.close)

    async def _tools(self, name: str) -> tuple[McpTool, ...]:
        return await self._connection(name).tools()

    async def _call(self, tool: McpTool, arguments: dict[str, Any]) -> tuple[str, bool]:
        return await self._connection(tool.server).call(tool.name, arguments)

    async def _close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()))

    def _connection(self, name: str) -> "McpConnection":
        if name not in self._connections:
            self._connections[name] = self._module.McpConnection(
                name, self._configs[name], lambda: self._open_log(name)
            )
        return self._connections[name]
