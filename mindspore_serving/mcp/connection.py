"""The connection to an MCP server, opened when it is needed, and again after growing delays.

Everything here runs on the event loop of `McpServers`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import msgspec
from jsonschema import Draft202012Validator, SchemaError
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, Implementation
from pydantic import ValidationError

from mindspore_serving import __version__, log
from mindspore_serving.core.backoff import Backoff
from mindspore_serving.errors import Overloaded, ServingError, UpstreamFailed, UpstreamLate
from mindspore_serving.mcp.config import McpServerConfig
from mindspore_serving.mcp.names import McpTool
from mindspore_serving.mcp.transports import StdioTransport, connect_http
from mindspore_serving.process.child_log import ChildLog

MAX_TOOLS = 512  # of one server
MAX_PAGES = 64
MAX_SCHEMA = 1 << 16  # bytes of the input schema of a tool
MAX_CALLS = 32  # of one server at a time
FRESH = 60.0  # seconds for which a list of tools is kept
START = 30.0  # seconds within which a server must answer first
_OF_CONNECTION = (INVALID_REQUEST, CONNECTION_CLOSED)  # codes of a session that has ended
_MAX_TEXT = 1 << 12  # characters of names, descriptions and errors

T = TypeVar("T")


class McpConnection:
    """A server of the operator's list."""

    def __init__(
        self, name: str, config: McpServerConfig, open_log: Callable[[], ChildLog]
    ) -> None:
        self._name = name
        self._config = config
        self._open_log = open_log
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] | None = None
        self._ended = asyncio.Event()
        self._process: StdioTransport | None = None
        self._backoff = Backoff()
        self._retry_at = 0.0
        self._problem = ""
        self._is_closing = False
        self._num_calls = 0
        self._tools: tuple[McpTool, ...] = ()
        self._listed_at = -FRESH

    async def tools(self) -> tuple[McpTool, ...]:
        """Return the tools that the operator allows.

        Raises UpstreamFailed if the server fails, or what it lists cannot be used.
        """
        if time.monotonic() - self._listed_at > FRESH or not self._is_open:
            listed = await self._answered(self._list(await self._client()))
            self._tools, self._listed_at = self._checked(listed), time.monotonic()
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call a tool; return the text of its result, and whether the tool failed.

        Raises UpstreamFailed, UpstreamLate or Overloaded.
        """
        if self._num_calls >= MAX_CALLS:
            text = f"MCP server {self._name!r}: {MAX_CALLS} calls run, which is the limit"
            raise Overloaded(text)
        self._num_calls += 1
        try:
            client = await self._client()
            result = await self._answered(client.call_tool(name, arguments))
        finally:
            self._num_calls -= 1
        return self._cut(_to_text(result)), bool(result.is_error)

    async def close(self) -> None:
        """End the connection, and the process."""
        if self._task is not None:
            self._is_closing = True
            self._task.cancel()
            await asyncio.wait((self._task,))

    @property
    def _is_open(self) -> bool:
        return self._ready is not None and self._ready.done() and not self._ended.is_set()

    async def _client(self) -> Client:
        if self._task is not None and self._ended.is_set():
            await asyncio.wait((self._task,))
        if self._task is None or self._task.done():
            wait = self._retry_at - time.monotonic()
            if wait > 0:
                raise self._failed(f"{self._problem}; it is tried again in {wait:.1f} s")
            self._ready, self._ended = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._task = asyncio.create_task(self._live(self._ready))
        assert self._ready is not None
        return await asyncio.shield(self._ready)

    async def _live(self, ready: "asyncio.Future[Client]") -> None:
        """Hold the connection until it ends."""
        started = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        late = asyncio.get_running_loop().call_later(START, task.cancel)
        problem = ""
        try:
            info = Implementation(name="mindspore-serving", version=__version__)
            async with Client(self._transport(), client_info=info, cache=None) as client:
                late.cancel()
                ready.set_result(client)
                await self._ended.wait()
        except asyncio.CancelledError:
            is_late = time.monotonic() - started >= START
            problem = f"it did not answer within {START:.0f} s" if is_late else "it is closed"
        except Exception as error:
            problem = _reason(error)
        finally:
            late.cancel()
            self._ended.set()
            self._problem = (self._process and self._process.problem) or problem or self._problem
            delay = self._backoff.died(time.monotonic() - started) or 0.0
            self._retry_at = time.monotonic() + delay
            if not self._is_closing:
                log.warning("MCP server %r: the connection ended: %s", self._name, self._problem)
            if not ready.done():
                ready.set_exception(self._failed(self._problem))
                ready.exception()  # retrieved: the callers may have been cancelled

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        if self._config.url is not None:
            return connect_http(self._config)
        self._process = StdioTransport(self._config, self._open_log(), self._ended.set)
        return self._process.connect()

    async def _answered(self, work: Awaitable[T]) -> T:
        """Return the result of a request, within the timeout of the server."""
        began, seconds = time.monotonic(), self._config.timeout_seconds
        try:
            with anyio.fail_after(seconds):
                return await work
        except TimeoutError:
            if self._process is not None and self._process.heard < began:
                self._end(f"it was silent for {seconds:g} s")
            raise UpstreamLate(
                f"MCP server {self._name!r} did not answer within {seconds:g} s"
            ) from None
        except ServingError:
            raise
        except Exception as error:
            problem = (self._process and self._process.problem) or _reason(error)
            is_answer = isinstance(error, MCPError) and error.code not in _OF_CONNECTION
            if self._process is None and not is_answer:
                self._end(problem)
            raise self._failed(problem) from None

    def _end(self, problem: str) -> None:
        """End the connection, so that the next request opens another."""
        self._problem = problem
        if self._process is not None and not self._process.problem:
            self._process.problem = problem
        self._ended.set()

    async def _list(self, client: Client) -> list[Any]:
        listed: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed += [tool for tool in page.tools if self._is_allowed(tool.name)]
            cursor = page.next_cursor
            if cursor is None:
                return listed
            if len(listed) > MAX_TOOLS:
                break
        raise self._failed(f"it lists over {MAX_TOOLS} tools or over {MAX_PAGES} pages of them")

    def _is_allowed(self, name: str) -> bool:
        allowed = self._config.allowed_tools
        return allowed is None or name in allowed

    def _checked(self, listed: Iterable[Any]) -> tuple[McpTool, ...]:
        """Return tools that can be offered.  Raises UpstreamFailed."""
        tools: dict[str, McpTool] = {}
        for row in listed:
            name = row.name[:_MAX_TEXT]
            if name in tools:
                raise self._failed(f"it lists the tool {name[:64]!r} twice")
            problem = _problem_of(row)
            if problem:
                advice = "leave it out by allowedTools"
                raise self._failed(f"its tool {name[:64]!r} {problem}; {advice}")
            notes = row.annotations and row.annotations.model_dump(by_alias=True, exclude_none=True)
            text = (row.description or "")[:_MAX_TEXT]
            tools[name] = McpTool(self._name, name, text, row.input_schema, notes)
        if len(tools) > MAX_TOOLS:
            raise self._failed(f"it lists {len(tools)} tools, expected at most {MAX_TOOLS}")
        return tuple(tools.values())

    def _cut(self, text: str) -> str:
        data, limit = text.encode(errors="replace"), self._config.max_output_bytes
        if len(data) <= limit:
            return text
        shown = data[:limit].decode(errors="ignore")
        return f"{shown}\n[the first {limit} of {len(data)} bytes]"

    def _failed(self, problem: str) -> UpstreamFailed:
        return UpstreamFailed(f"MCP server {self._name!r} failed: {problem}")


def _problem_of(row: Any) -> str:
    """Return why a tool cannot be offered, "" if it can."""
    if not 1 <= len(row.name) <= 128:
        return "has no name of 1 to 128 characters"
    schema = row.input_schema
    try:
        if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
            return f"has an input schema of over {MAX_SCHEMA} bytes"
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError, msgspec.MsgspecError) as error:
        return f"has an invalid input schema: {str(getattr(error, 'message', error))[:200]}"
    return "" if schema.get("type", "object") == "object" else "takes no object"


def _to_text(result: Any) -> str:
    """Return the content of a result as a text; other content than text is named."""
    parts = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) or getattr(resource, "text", None)
        kind = getattr(block, "mime_type", None) or getattr(block, "uri", None) or block.type
        parts.append(text if text is not None else f"[{kind}, not shown]")
    if not parts and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    """Return the text of an error, or of the first in a group."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    text = str(error) or type(error).__name__
    if isinstance(error, ValidationError):
        text = f"it sent an invalid answer: {error.errors()[0]['msg']}"
    return text[:_MAX_TEXT]
