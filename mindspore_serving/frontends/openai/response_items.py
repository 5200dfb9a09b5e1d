"""Output items of a response: a message, reasoning and calls of tools, built chunk by chunk.

An item stays open until an item of another type begins. Every step returns the events of the
stream. Knows no sockets and no request.
"""

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, GeneratedToken, ToolCallDelta
from mindspore_serving.frontends.chat.custom_tools import InputReader
from mindspore_serving.frontends.chat.logprobs import to_chat_logprobs
from mindspore_serving.frontends.chat.mcp_tools import McpListed, McpResult
from mindspore_serving.frontends.chat.opaque import encode_text
from mindspore_serving.frontends.openai.response_mcp import LIST, to_error
from mindspore_serving.frontends.openai.response_tools import (
    CUSTOM,
    FUNCTION,
    MCP,
    CalledTool,
    CallKind,
    to_argument,
)

Object = dict[str, Any]


@dataclass(slots=True)
class _Open:
    """Item that is still growing; `part` is the content part of a message or of reasoning."""

    item: Object
    index: int  # of the item in the output
    part: Object | None = None
    kind: CallKind | None = None  # of a call
    reader: InputReader | None = None  # of the text of a custom tool's call
    texts: list[str] = field(default_factory=list)  # joined when it is closed
    logprobs: list[Object] = field(default_factory=list)

    def event(self, kind: str, **fields: Any) -> Object:
        position: Object = {"item_id": self.item["id"], "output_index": self.index}
        if self.part is not None:
            position["content_index"] = 0
        return {"type": f"response.{kind}", **position, **fields}


class ResponseOutput:
    """Output items of one response; every method returns the events to send.

    `called` has the tools by the name of the function in the prompt; `encodes_reasoning` adds what
    clients send back that keep no text of the reasoning.
    """

    def __init__(
        self, called: Mapping[str, CalledTool], *, encodes_reasoning: bool = False
    ) -> None:
        self.items: list[Object] = []
        self._encodes_reasoning = encodes_reasoning
        self._called = called
        self._open: _Open | None = None
        self._running: deque[_Open] = deque()  # calls of MCP servers' tools without a result

    def take(self, chunk: Chunk, tokens: Sequence[GeneratedToken] = ()) -> list[Object]:
        """Add a chunk; `tokens` are its text's tokens, if log-probabilities were requested."""
        events: list[Object] = []
        if chunk.reasoning:
            events += self._add_text("reasoning", chunk.reasoning, ())
        if chunk.text:
            events += self._add_text("message", chunk.text, () if events else tokens)
        for call in chunk.tool_calls:
            events += self._add_call(call)
        return events

    def finish(self, status: str) -> list[Object]:
        """Close the last item with `status`, "completed" or "incomplete".

        An empty answer becomes an empty message.
        """
        events = [] if self.items else self._add_text("message", "", ())
        events += self._close(status)
        while self._running:  # the answer ends without their results
            opened = self._running.popleft()
            opened.item["status"] = "incomplete"
            events.append(_item_event("done", opened))
        return events

    def add_list(self, listed: McpListed) -> list[Object]:
        """Add the list of an MCP server's tools."""
        events = self._close("completed")
        opened = self._begin(_item("mcpl", LIST, server_label=listed.server, tools=[]))
        events += [_item_event("added", opened), opened.event(f"{LIST}.in_progress")]
        opened.item["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.schema,
                "annotations": tool.annotations,
            }
            for tool in listed.tools
        ]
        self._open = None
        del opened.item["status"]
        return [*events, opened.event(f"{LIST}.completed"), _item_event("done", opened)]

    def add_result(self, result: McpResult) -> list[Object]:
        """Add the result of the first call of an MCP server's tool that has none."""
        events = self._close("completed")
        opened = self._running.popleft()
        status = "failed" if result.has_failed else "completed"
        outcome = to_error(result.text) if result.has_failed else {"output": result.text}
        opened.item |= {"status": status, **outcome}
        return [*events, opened.event(f"{MCP.item}.{status}"), _item_event("done", opened)]

    def _add_text(self, kind: str, text: str, tokens: Sequence[GeneratedToken]) -> list[Object]:
        """Append text to the open item of `kind`, or begin one."""
        opened, events = self._open, []
        if opened is None or opened.item["type"] != kind:
            events = self._close("completed")
            opened = self._begin_text(kind)
            events += [
                _item_event("added", opened),
                opened.event("content_part.added", part=opened.part),
            ]
        if not text:
            return events
        opened.texts.append(text)
        if kind == "reasoning":
            return [*events, opened.event("reasoning_text.delta", delta=text)]
        logprobs = to_chat_logprobs(tokens)["content"] if tokens else []
        opened.logprobs += logprobs
        return [*events, opened.event("output_text.delta", delta=text, logprobs=logprobs)]

    def _add_call(self, call: ToolCallDelta) -> list[Object]:
        if call.name is not None:
            return [*self._close("completed"), *self._begin_call(call.name)]
        opened = self._open
        if opened is None or opened.kind is None:
            raise RuntimeError("bug in the output parser: arguments before a call")
        reader, deltas = opened.reader, opened.kind.deltas
        text = call.arguments if reader is None else reader.feed(call.arguments)
        opened.texts.append(text)
        return [opened.event(f"{deltas}.delta", delta=text)] if deltas and text else []

    def _begin_call(self, name: str) -> list[Object]:
        """Begin the item of a call of the function `name`."""
        tool = self._called.get(name) or CalledTool(FUNCTION, name)
        kind = tool.kind
        if kind is MCP:
            return self._begin_mcp_call(tool)
        item = _item(kind.prefix, kind.item, call_id=_name("call"))
        if not kind.is_object:
            item["name"] = tool.name
            if tool.namespace:
                item["namespace"] = tool.namespace
        item[kind.argument] = to_argument(kind, "")
        opened = self._begin(item)
        opened.kind = kind
        opened.reader = InputReader() if kind is CUSTOM else None
        return [_item_event("added", opened)]

    def _begin_mcp_call(self, tool: CalledTool) -> list[Object]:
        fields = {"server_label": tool.namespace, "name": tool.name, "arguments": ""}
        item = _item(MCP.prefix, MCP.item, **fields, output=None, error=None)
        opened = self._begin({**item, "approval_request_id": None})
        opened.kind = MCP
        self._running.append(opened)
        return [_item_event("added", opened), opened.event(f"{MCP.item}.in_progress")]

    def _begin_text(self, kind: str) -> "_Open":
        if kind == "reasoning":
            part: Object = {"type": "reasoning_text", "text": ""}
            return self._begin(_item("rs", kind, summary=[], content=[]), part)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._begin(_item("msg", kind, role="assistant", content=[]), part)

    def _begin(self, item: Object, part: Object | None = None) -> "_Open":
        self._open = _Open(item, len(self.items), part)
        self.items.append(item)
        return self._open

    def _close(self, status: str) -> list[Object]:
        """Close the open item with `status`."""
        opened, self._open = self._open, None
        if opened is None:
            return []
        part, item = opened.part, opened.item
        item["status"] = status
        if opened.kind is not None:
            return _close_call(opened, opened.kind)
        text = "".join(opened.texts)
        assert part is not None
        part = {**part, "text": text}
        if item["type"] == "reasoning":
            done = opened.event("reasoning_text.done", text=text)
            if self._encodes_reasoning:
                item["encrypted_content"] = encode_text(text)
        else:
            part["logprobs"] = opened.logprobs
            done = opened.event("output_text.done", text=text, logprobs=opened.logprobs)
        item["content"] = [part]
        return [done, opened.event("content_part.done", part=part), _item_event("done", opened)]


def _close_call(opened: _Open, kind: CallKind) -> list[Object]:
    rest = opened.reader.finish() if opened.reader else ""
    item = opened.item
    item[kind.argument] = argument = to_argument(kind, "".join([*opened.texts, rest]))
    events = [] if kind is MCP else [_item_event("done", opened)]
    if kind.deltas:
        name = {"name": item["name"]} if kind is FUNCTION else {}
        events.insert(0, opened.event(f"{kind.deltas}.done", **name, **{kind.argument: argument}))
    if rest and kind.deltas:
        events.insert(0, opened.event(f"{kind.deltas}.delta", delta=rest))
    return events


def _item_event(action: str, opened: _Open) -> Object:
    kind = f"response.output_item.{action}"
    return {"type": kind, "output_index": opened.index, "item": dict(opened.item)}


def _item(prefix: str, kind: str, **fields: Any) -> Object:
    return {"id": _name(prefix), "type": kind, "status": "in_progress", **fields}


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
