"""Content blocks of an answer: text, thinking and tool uses, built chunk by chunk.

A block stays open until a block of another type begins.  Every step returns the events of the
stream.  Knows no sockets and no request.
"""

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, ToolCallDelta
from mindspore_serving.frontends.chat.mcp_tools import McpResult
from mindspore_serving.frontends.chat.opaque import sign
from mindspore_serving.mcp.names import McpTool

Object = dict[str, Any]

_DELTAS = {  # by the type of a block: the type of its deltas, and their field
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
    "mcp_tool_use": ("input_json_delta", "partial_json"),
}


_RESULT = "mcp_tool_result"


@dataclass(slots=True)
class _Block:
    """A block; `start` is the block without its content, which is in `pieces`."""

    index: int
    start: Object
    pieces: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Type of the block."""
        kind: str = self.start["type"]
        return kind

    @property
    def text(self) -> str:
        """Content until now."""
        return "".join(self.pieces)

    def event(self, name: str, **fields: Any) -> Object:
        return {"type": f"content_block_{name}", "index": self.index, **fields}

    def to_object(self) -> Object | None:
        """Return the complete block; None for a tool use whose input was cut off."""
        text = self.text
        if self.kind == "thinking":
            return {**self.start, "thinking": text, "signature": sign(text)}
        if self.kind == "text":
            return {**self.start, "text": text}
        if self.kind == _RESULT:
            return self.start
        try:
            return {**self.start, "input": msgspec.json.decode(text or "{}", type=Object)}
        except (msgspec.MsgspecError, RecursionError):
            return None


class Content:
    """Blocks of one answer; every method returns the events to send."""

    def __init__(self, mcp: Mapping[str, McpTool]) -> None:
        self._mcp = mcp  # tools of MCP servers, by the function in the prompt
        self._running: deque[str] = deque()  # ids of their calls without a result
        self._blocks: list[_Block] = []
        self._is_open = False

    def take(self, chunk: Chunk) -> list[Object]:
        """Add a chunk."""
        events: list[Object] = []
        if chunk.reasoning:
            events += self._add("thinking", chunk.reasoning)
        if chunk.text:
            events += self._add("text", chunk.text)
        for call in chunk.tool_calls:
            events += self._add_call(call)
        return events

    def add_result(self, result: McpResult) -> list[Object]:
        """Add the result of the first call of an MCP server's tool that has none."""
        start = {
            "type": _RESULT,
            "tool_use_id": self._running.popleft(),
            "is_error": result.has_failed,
            "content": [{"type": "text", "text": result.text}],
        }
        return [*self._begin(start), *self.finish()]

    def finish(self) -> list[Object]:
        """Close the last block."""
        if not self._is_open:
            return []
        self._is_open = False
        last = self._blocks[-1]
        stop = last.event("stop")
        if last.kind != "thinking":
            return [stop]
        delta = {"type": "signature_delta", "signature": sign(last.text)}
        return [last.event("delta", delta=delta), stop]

    def to_objects(self) -> list[Object]:
        """Return the complete blocks."""
        objects = [block.to_object() for block in self._blocks]
        return [block for block in objects if block is not None]

    def _add(self, kind: str, text: str) -> list[Object]:
        events = []
        if not self._is_open or self._blocks[-1].kind != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            events = self._begin({"type": kind, kind: "", **signature})
        return [*events, self._append(text)]

    def _add_call(self, call: ToolCallDelta) -> list[Object]:
        if call.name is None:
            return [self._append(call.arguments)]
        if tool := self._mcp.get(call.name):
            name = f"mcptoolu_{secrets.token_hex(12)}"
            self._running.append(name)
            start = {"type": "mcp_tool_use", "id": name, "name": tool.name, "input": {}}
            return self._begin({**start, "server_name": tool.server})
        name = f"toolu_{secrets.token_hex(12)}"
        return self._begin({"type": "tool_use", "id": name, "name": call.name, "input": {}})

    def _begin(self, start: Object) -> list[Object]:
        events = self.finish()
        self._blocks.append(_Block(len(self._blocks), start))
        self._is_open = True
        return [*events, self._blocks[-1].event("start", content_block=start)]

    def _append(self, text: str) -> Object:
        block = self._blocks[-1]
        block.pieces.append(text)
        kind, name = _DELTAS[block.kind]
        return block.event("delta", delta={"type": kind, name: text})
