"""The text of an answer taken apart, as the form of the model's tools and reasoning says, and put
into the fields of a message: at once, or change by change.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.llm.chat.output_parser import (
    CallArguments,
    CallBegun,
    Content,
    Delta,
    OutputParser,
    Reasoning,
    shows_special_tokens,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an answer: rows of `llm.tool_formats` and `llm.reasoning_formats`, the tools
    that may be called, and whether calls behind the first count."""

    tool_format: str
    reasoning_format: str
    tools: Sequence[dict[str, Any]] = ()
    parallel: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether all of the text is content."""
        return not self.tools and not self.reasoning_format

    @property
    def shows_special_tokens(self) -> bool:
        """Whether the text must have the special tokens."""
        tool_format = self.tool_format if self.tools else ""
        return not self.is_plain and shows_special_tokens(tool_format, self.reasoning_format)

    def begin(self) -> "Reader":
        """For one answer."""
        return Reader(self)


class Reader:
    """Reads one answer.  `has_calls` says whether there were calls of tools so far."""

    def __init__(self, reading: Reading) -> None:
        self._parallel = reading.parallel
        self._parser = OutputParser(
            reading.tool_format if reading.tools else "", reading.reasoning_format, reading.tools
        )
        self.has_calls = False

    def take(self, text: str, *, is_end: bool) -> list[Delta]:
        """What `text` adds; with `is_end` nothing follows."""
        found = self._parser.feed(text) if text else []
        if is_end:
            found = [*found, *self._parser.finish()]
        if not self._parallel:
            found = [delta for delta in found if getattr(delta, "index", 0) == 0]
        self.has_calls = self.has_calls or any(isinstance(delta, CallBegun) for delta in found)
        return found


def to_delta(delta: Delta) -> dict[str, Any]:
    """The `delta` of a chunk.  Clients add up the strings of chunks, so id and name of a call
    are in its first one only."""
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallArguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return {"tool_calls": [{"index": delta.index, **_call(delta.name)}]}


def _call(name: str) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }


@dataclass(slots=True)
class Collected:
    """All of an answer."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        if isinstance(delta, Content):
            self.content.append(delta.text)
        elif isinstance(delta, Reasoning):
            self.reasoning.append(delta.text)
        elif isinstance(delta, CallBegun):
            self.calls.append(_call(delta.name))
        else:
            self.calls[delta.index]["function"]["arguments"] += delta.text

    def to_message(self) -> dict[str, Any]:
        content: str | None = "".join(self.content)
        if not content and (self.calls or self.reasoning):
            content = None
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            found["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            found["tool_calls"] = self.calls
        return found


def to_message(reading: Reading, text: str) -> dict[str, Any]:
    """The message of an answer that is there as a whole."""
    collected = Collected()
    deltas = [Content(text)] if reading.is_plain else reading.begin().take(text, is_end=True)
    for delta in deltas:
        collected.add(delta)
    return collected.to_message()
