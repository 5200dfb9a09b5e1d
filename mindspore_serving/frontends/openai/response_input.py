"""The items of a response's input as messages of a chat: what an assistant did in one turn, its
reasoning, text and calls, are several items there and one message here.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.messages import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    ToolCall,
)
from mindspore_serving.frontends.decoding import decode
from mindspore_serving.frontends.openai.response_requests import (
    CallItem,
    CompactionItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseKind,
    ResponseTool,
)

ROLES = ("user", "assistant", "system", "developer")
_FIRST = ("system", "developer")
_KINDS = ("message", "function_call", "function_call_output", "reasoning", "compaction")
_SUMMARY = "ms1."  # before a summary in base64: it is no secret, and is not read by clients

Item = TypeVar(
    "Item",
    MessageItem,
    CallItem,
    OutputItem,
    ReasoningItem,
    CompactionItem,
    ResponseKind,
    ResponseTool,
)


@dataclass(slots=True)
class Messages:
    """Messages, and where in the request each of them is."""

    found: list[ChatMessage] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    thoughts: dict[int, list[str]] = field(default_factory=dict)  # by the place of the message

    def add(self, place: str, message: ChatMessage) -> None:
        self.found.append(message)
        self.places.append(place)

    def assistant(self, place: str, *, is_done: bool) -> ChatMessage:
        """The assistant's message that the next item belongs to: the last one, unless the item
        would come before what is in it already, if `is_done`.
        """
        last = self.found[-1] if self.found else None
        if last is None or last.role != "assistant" or is_done:
            last = ChatMessage(role="assistant")
            self.add(place, last)
        return last

    def think(self, place: str, text: str, *, is_done: bool) -> None:
        self.assistant(place, is_done=is_done)
        self.thoughts.setdefault(len(self.found) - 1, []).append(text)

    def join_thoughts(self) -> None:
        """Nothing follows."""
        for index, texts in self.thoughts.items():
            self.found[index].reasoning_content = "".join(texts)

    @property
    def has_text(self) -> bool:
        return bool(self.found) and self.found[-1].content is not None

    @property
    def has_calls(self) -> bool:
        return bool(self.found) and bool(self.found[-1].tool_calls)


def to_items(given: str | Sequence[msgspec.Raw]) -> list[bytes]:
    """The items of an input, a text among them, as JSON."""
    if isinstance(given, str):
        return [msgspec.json.encode({"role": "user", "content": given})]
    return [bytes(raw) for raw in given]


def to_messages(
    given: str | Sequence[msgspec.Raw], instructions: str | None, before: Sequence[bytes] = ()
) -> Messages:
    """The conversation: `instructions`, the items `before` and the input.  Raises InvalidField."""
    messages = Messages()
    if instructions:
        messages.add("instructions", ChatMessage(role="system", content=instructions))
    for raw in before:
        _add(messages, "previous_response_id", raw)
    if isinstance(given, str):
        messages.add("input", ChatMessage(role="user", content=given))
    elif not given:
        raise InvalidField("input", "is [], expected a text or at least one item")
    else:
        for index, item in enumerate(given):
            _add(messages, f"input[{index}]", bytes(item))
    messages.join_thoughts()
    return messages


def _add(messages: Messages, place: str, raw: bytes) -> None:
    kind = read(place, raw, ResponseKind)
    if kind.type is None or kind.type == "message":
        _add_message(messages, place, read(place, raw, MessageItem))
    elif kind.type == "function_call":
        _add_call(messages, place, read(place, raw, CallItem))
    elif kind.type == "function_call_output":
        item = read(place, raw, OutputItem)
        message = ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
        messages.add(place, message)
    elif kind.type == "reasoning":
        _add_reasoning(messages, place, read(place, raw, ReasoningItem))
    elif kind.type == "compaction":
        summary = read(place, raw, CompactionItem).encrypted_content
        is_done = messages.has_text or messages.has_calls
        said = messages.assistant(place, is_done=is_done)
        said.content = _decode_summary(f"{place}.encrypted_content", summary)
    else:
        accepted = ", ".join(_KINDS)
        raise unexpected(f"{place}.type", kind.type, f"one of {accepted}")


def _add_message(messages: Messages, place: str, item: MessageItem) -> None:
    if item.role not in ROLES:
        accepted = ", ".join(ROLES)
        raise unexpected(f"{place}.role", item.role, f"one of {accepted}")
    if item.role == "assistant":
        is_done = messages.has_text or messages.has_calls
        messages.assistant(place, is_done=is_done).content = item.content
    elif item.role in _FIRST and len(messages.found) == 1 and messages.found[0].role == "system":
        # Instructions and a system message: most templates know one, at the beginning.
        first = messages.found[0]
        first.content = _parts(first.content)
        first.content += [ContentPart("text", ""), *_parts(item.content)]
    else:
        role = "system" if item.role in _FIRST else item.role
        messages.add(place, ChatMessage(role=role, content=item.content))


def _add_call(messages: Messages, place: str, item: CallItem) -> None:
    message = messages.assistant(place, is_done=False)
    call = ToolCall(CalledFunction(item.name, item.arguments), item.call_id, "function")
    message.tool_calls = message.tool_calls or []
    message.tool_calls.append(call)


def _add_reasoning(messages: Messages, place: str, item: ReasoningItem) -> None:
    """The text itself, or else its summary; one that only OpenAI can decrypt is left out."""
    parts = item.content or item.summary or ()
    text = "\n".join([part.text for part in parts if part.text])
    if text:
        is_done = messages.has_text or messages.has_calls
        messages.think(place, text, is_done=is_done)


def encode_summary(text: str) -> str:
    """As the content of a compaction item."""
    return _SUMMARY + b64encode(text.encode()).decode()


def _decode_summary(place: str, content: str) -> str:
    try:
        return b64decode(content.removeprefix(_SUMMARY).encode(), validate=True).decode()
    except ValueError:
        problem = "cannot be read, expected what /v1/responses/compact of this server gave"
        raise InvalidField(place, problem) from None


def _parts(content: str | list[ContentPart] | None) -> list[ContentPart]:
    return content if isinstance(content, list) else [ContentPart("text", content or "")]


def read(place: str, raw: bytes, kind: type[Item]) -> Item:
    """`raw` as a `kind`.  Raises InvalidField naming its place in the request."""
    try:
        return decode(raw, kind)
    except InvalidField as error:
        if not error.field:
            raise InvalidField(place, text=str(error).replace("the body", place, 1)) from None
        raise error.renamed(f"{place}.{error.field}") from None
