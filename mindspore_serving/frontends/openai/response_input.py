"""Input items of a response as messages of a chat.

The reasoning, text and calls of one turn of the assistant are several items, and one message here.
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
    ItemType,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponseTool,
)

ROLES = ("user", "assistant", "system", "developer")
_FIRST = ("system", "developer")
_KINDS = ("message", "function_call", "function_call_output", "reasoning", "compaction")
_SUMMARY = "ms1."  # prefix of a summary in base64, which is opaque to clients but not encrypted

Item = TypeVar(
    "Item",
    MessageItem,
    CallItem,
    OutputItem,
    ReasoningItem,
    CompactionItem,
    ItemType,
    ResponseTool,
)


@dataclass(slots=True)
class ResponseConversation:
    """Conversation of a request, with the path in the request of each message."""

    messages: list[ChatMessage] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    reasoning: dict[int, list[str]] = field(default_factory=dict)  # by the index of the message

    def add(self, path: str, message: ChatMessage) -> None:
        """Append a message that came from `path`."""
        self.messages.append(message)
        self.paths.append(path)

    def assistant(self, path: str, *, is_done: bool) -> ChatMessage:
        """Return the assistant's message that the next item belongs to.

        It is the last message; a new one if that is not the assistant's, or is complete
        (`is_done`).
        """
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or is_done:
            last = ChatMessage(role="assistant")
            self.add(path, last)
        return last

    def add_reasoning(self, path: str, text: str, *, is_done: bool) -> None:
        """Add reasoning to the assistant's message."""
        self.assistant(path, is_done=is_done)
        self.reasoning.setdefault(len(self.messages) - 1, []).append(text)

    def join_reasoning(self) -> None:
        """Set the reasoning of each message, after the last item."""
        for index, texts in self.reasoning.items():
            self.messages[index].reasoning_content = "".join(texts)

    @property
    def has_text(self) -> bool:
        """True if the last message has text."""
        return bool(self.messages) and self.messages[-1].content is not None

    @property
    def has_calls(self) -> bool:
        """True if the last message has tool calls."""
        return bool(self.messages) and bool(self.messages[-1].tool_calls)


def to_items(input_: str | Sequence[msgspec.Raw]) -> list[bytes]:
    """Return the items of an input as JSON; a plain text becomes a user's message."""
    if isinstance(input_, str):
        return [msgspec.json.encode({"role": "user", "content": input_})]
    return [bytes(raw) for raw in input_]


def to_messages(
    input_: str | Sequence[msgspec.Raw], instructions: str | None, before: Sequence[bytes] = ()
) -> ResponseConversation:
    """Return the conversation: `instructions`, the items `before`, then the input.

    Raises InvalidField.
    """
    conversation = ResponseConversation()
    if instructions:
        conversation.add("instructions", ChatMessage(role="system", content=instructions))
    for raw in before:
        _add(conversation, "previous_response_id", raw)
    if isinstance(input_, str):
        conversation.add("input", ChatMessage(role="user", content=input_))
    elif not input_:
        raise InvalidField("input", "is [], expected a text or at least one item")
    else:
        for index, item in enumerate(input_):
            _add(conversation, f"input[{index}]", bytes(item))
    conversation.join_reasoning()
    return conversation


def _add(conversation: ResponseConversation, path: str, raw: bytes) -> None:
    """Add an input item to the conversation."""
    kind = read(path, raw, ItemType)
    if kind.type is None or kind.type == "message":
        _add_message(conversation, path, read(path, raw, MessageItem))
    elif kind.type == "function_call":
        _add_call(conversation, path, read(path, raw, CallItem))
    elif kind.type == "function_call_output":
        item = read(path, raw, OutputItem)
        message = ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
        conversation.add(path, message)
    elif kind.type == "reasoning":
        _add_reasoning(conversation, path, read(path, raw, ReasoningItem))
    elif kind.type == "compaction":
        summary = read(path, raw, CompactionItem).encrypted_content
        is_done = conversation.has_text or conversation.has_calls
        message = conversation.assistant(path, is_done=is_done)
        message.content = _decode_summary(f"{path}.encrypted_content", summary)
    else:
        accepted = ", ".join(_KINDS)
        raise unexpected(f"{path}.type", kind.type, f"one of {accepted}")


def _add_message(conversation: ResponseConversation, path: str, item: MessageItem) -> None:
    if item.role not in ROLES:
        accepted = ", ".join(ROLES)
        raise unexpected(f"{path}.role", item.role, f"one of {accepted}")
    if item.role == "assistant":
        is_done = conversation.has_text or conversation.has_calls
        conversation.assistant(path, is_done=is_done).content = item.content
    elif (
        item.role in _FIRST
        and len(conversation.messages) == 1
        and conversation.messages[0].role == "system"
    ):
        # Most templates accept a single system message, the first: join it with the instructions.
        first = conversation.messages[0]
        first.content = _parts(first.content)
        first.content += [ContentPart("text", ""), *_parts(item.content)]
    else:
        role = "system" if item.role in _FIRST else item.role
        conversation.add(path, ChatMessage(role=role, content=item.content))


def _add_call(conversation: ResponseConversation, path: str, item: CallItem) -> None:
    message = conversation.assistant(path, is_done=False)
    call = ToolCall(CalledFunction(item.name, item.arguments), item.call_id, "function")
    message.tool_calls = message.tool_calls or []
    message.tool_calls.append(call)


def _add_reasoning(conversation: ResponseConversation, path: str, item: ReasoningItem) -> None:
    """Add the reasoning's text, or else its summary; encrypted reasoning is left out."""
    parts = item.content or item.summary or ()
    text = "\n".join([part.text for part in parts if part.text])
    if text:
        is_done = conversation.has_text or conversation.has_calls
        conversation.add_reasoning(path, text, is_done=is_done)


def encode_summary(text: str) -> str:
    """Encode a summary as the `encrypted_content` of a compaction item."""
    return _SUMMARY + b64encode(text.encode()).decode()


def _decode_summary(path: str, content: str) -> str:
    try:
        return b64decode(content.removeprefix(_SUMMARY).encode(), validate=True).decode()
    except ValueError:
        problem = "is invalid, expected a summary made by /v1/responses/compact of this server"
        raise InvalidField(path, problem) from None


def _parts(content: str | list[ContentPart] | None) -> list[ContentPart]:
    return content if isinstance(content, list) else [ContentPart("text", content or "")]


def read(path: str, raw: bytes, kind: type[Item]) -> Item:
    """Decode `raw` as a `kind`.

    Raises InvalidField with the path of the field in the request.
    """
    try:
        return decode(raw, kind)
    except InvalidField as error:
        if not error.field:
            raise InvalidField(path, text=str(error).replace("the body", path, 1)) from None
        raise error.renamed(f"{path}.{error.field}") from None
