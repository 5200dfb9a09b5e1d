"""Tools of MCP servers that a request names: which of them are offered, and their calls.

Knows no protocol: a front end reads `McpWish`es from its request, and writes `McpListed` and
`McpResult` in its own form.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request

from mindspore_serving.errors import InvalidField, did_you_mean
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.chat.tools import Function, Tool
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.keys import owner_of
from mindspore_serving.mcp.names import McpTool
from mindspore_serving.mcp.servers import MAX_CALLS, McpServers

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class McpWish:
    """A server that a request names; `path` and `label` are the field of its name.

    `url` is what the client gives, "" for nothing.  All tools are offered if `allowed` is None,
    without those in `left_out`.
    """

    path: str
    label: str
    url: str = ""
    allowed: Collection[str] | None = None
    left_out: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class McpListed:
    """The tools of a server that are offered."""

    server: str
    tools: Sequence[McpTool]


@dataclass(frozen=True, slots=True)
class McpResult:
    """The result of a call, as a text."""

    text: str
    has_failed: bool


@dataclass(slots=True)
class McpOffer:
    """The tools of servers that one request offers, for at most `num_left` calls."""

    servers: McpServers | None = None
    listed: list[McpListed] = field(default_factory=list)
    tools: dict[str, McpTool] = field(default_factory=dict)  # by the function in the prompt
    owner: str = ""
    num_left: int = MAX_CALLS

    def functions(self) -> list[Tool]:
        """Return the functions that stand for the tools."""
        return [
            Tool("function", Function(tool.function, tool.description, tool.schema))
            for tool in self.tools.values()
        ]

    async def call_all(self, calls: Sequence[tuple[str, str]]) -> list[McpResult]:
        """Call tools, given functions and arguments, at the same time.

        Calls over the limit are not made, and their results say so.
        """
        made = calls[: self.num_left]
        self.num_left -= len(made)
        results = await asyncio.gather(*(self._call(*call) for call in made))
        refused = McpResult("The limit of calls per request is reached.", has_failed=True)
        return [*results, *[refused] * (len(calls) - len(made))]

    async def _call(self, function: str, text: str) -> McpResult:
        try:
            arguments = msgspec.json.decode(text or "{}", type=Object)
        except (msgspec.DecodeError, RecursionError) as error:
            return McpResult(f"The arguments are no JSON object: {error}", has_failed=True)
        assert self.servers is not None
        return McpResult(*await self.servers.call(self.tools[function], arguments, self.owner))


async def find_offer(
    servers: McpServers | None, http: Request, wishes: Sequence[McpWish], taken: Collection[str]
) -> McpOffer | None:
    """Return the tools that a request names; `taken` are the names of its own functions.

    Raises InvalidField, UpstreamFailed or UpstreamLate.
    """
    if servers is None or not wishes:
        return None
    return await while_connected(http, _offer(servers, wishes, taken, owner_of(http.scope)))


async def _offer(
    servers: McpServers, wishes: Sequence[McpWish], taken: Collection[str], owner: str
) -> McpOffer:
    offered = McpOffer(servers, owner=owner)
    for wish in wishes:
        _check(servers, wish)
    for wish, tools in zip(
        wishes, await asyncio.gather(*(servers.tools(wish.label) for wish in wishes)), strict=True
    ):
        chosen = _chosen(wish, tools)
        offered.listed.append(McpListed(wish.label, chosen))
        for tool in chosen:
            if tool.function in taken or tool.function in offered.tools:
                text = f"{wish.path} has a tool that becomes {show(tool.function)}, which is taken"
                raise InvalidField(wish.path, text=text)
            offered.tools[tool.function] = tool
    return offered


def _check(servers: McpServers, wish: McpWish) -> None:
    """Check that the operator lists a server.  No request chooses what the server connects to."""
    if wish.label not in servers.names:
        near = did_you_mean(wish.label, servers.names)
        names = ", ".join(servers.names)
        raise InvalidField(wish.path, f"is {show(wish.label)}, expected one of: {names}{near}")
    if wish.url and wish.url != servers.url_of(wish.label):
        text = (
            f"{wish.path}: {show(wish.label)} has another URL than the server that the operator "
            "lists under this name: leave the URL out"
        )
        raise InvalidField(wish.path, text=text)


def _chosen(wish: McpWish, tools: Sequence[McpTool]) -> list[McpTool]:
    names = [tool.name for tool in tools]
    for name in (*(wish.allowed or ()), *wish.left_out):
        if name not in names:
            accepted = f"a tool of {wish.label}{did_you_mean(name, names)}"
            raise unexpected(wish.path, name, accepted)
    return [
        tool
        for tool in tools
        if (wish.allowed is None or tool.name in wish.allowed) and tool.name not in wish.left_out
    ]
