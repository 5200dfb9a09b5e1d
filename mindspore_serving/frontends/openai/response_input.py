"""Input items of a response as messages of a chat.

The reasoning, text and calls of one turn of the assistant are several items, and one message here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mindspore_serving.errors import InvalidField, misspelt
from mindspore_serving.frontends.chat.fields import show, unexpected
from mindspore_serving.frontends.chat.messages import (
    ChatMessage,
    ContentPart,
)
from mindspore_serving.frontends.chat.opaque import decode_text
from mindspore_serving.frontends.openai.response_calls import add_call, to_result
from mindspore_serving.frontends.openai.response_decoding import read
from mindspore_serving.frontends.openai.response_mcp import LIST, add_mcp_call
from mindspore_serving.frontends.openai.response_requests import (
    CompactionItem,
    ItemReference,
    ItemType,
    MessageItem,
    ReasoningItem,
)
from mindspore_serving.frontends.openai.response_tools import CALLS, MCP

ROLES = ("user", "assistant", "system", "developer")
_FIRST = ("system", "developer")
_OUTPUTS = {kind.output: kind for kind in CALLS.values()}
_MCP = (MCP.item, LIST)
_KINDS = ("message", *CALLS, *_OUTPUTS, *_MCP, "reasoning", "compaction", "item_reference")


@dataclass(slots=True)
class ResponseConversation:
    """Conversation of a request, with the path in the request of each message."""

    messages: list[ChatMessage] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    reasoning: dict[int, list[str]] = field(default_factory=dict)  # by the index of the message
    before: Sequence[bytes] = ()  # items of the response that this one continues
    known: set[str] | None = None  # their ids, once an item refers to one

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
    input_: str | Sequence[msgspec.Raw],
    instructions: str | None,
    before: Sequence[bytes] = (),
    source: str = "previous_response_id",
) -> ResponseConversation:
    """Return the conversation: `instructions`, the items `before` of `source`, then the input.

    Raises InvalidField.
    """
    conversation = ResponseConversation(before=before)
    if instructions:
        conversation.add("instructions", ChatMessage(role="system", content=instructions))
    for raw in before:
        _add(conversation, source, raw)
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
    elif kind.type in CALLS:
        add_call(conversation.assistant(path, is_done=False), CALLS[kind.type], path, raw)
    elif kind.type == MCP.item:
        message = conversation.assistant(path, is_done=False)
        conversation.add(path, add_mcp_call(message, path, raw))
    elif kind.type in _OUTPUTS:
        conversation.add(path, to_result(_OUTPUTS[kind.type], path, raw))
    elif kind.type == "reasoning":
        _add_reasoning(conversation, path, read(path, raw, ReasoningItem))
    elif kind.type == "compaction":
        summary = read(path, raw, CompactionItem).encrypted_content
        is_done = conversation.has_text or conversation.has_calls
        message = conversation.assistant(path, is_done=is_done)
        message.content = _decode_summary(f"{path}.encrypted_content", summary)
    elif kind.type == "item_reference":
        _check_reference(conversation, path, read(path, raw, ItemReference).id)
    elif kind.type != LIST and misspelt(kind.type, _KINDS):
        raise unexpected(f"{path}.type", kind.type, misspelt(kind.type, _KINDS))


def find_unread(input_: str | Sequence[msgspec.Raw]) -> list[tuple[str, str]]:
    """Return path and type of the items that the model does not see.

    These are calls of tools that only OpenAI's server runs, and types that are not known.
    """
    unread = []
    for index, raw in enumerate(() if isinstance(input_, str) else input_):
        path = f"input[{index}]"
        kind = read(path, bytes(raw), ItemType).type
        if kind is not None and kind not in _KINDS:
            unread.append((path, kind))
    return unread


def _check_reference(conversation: ResponseConversation, path: str, name: str) -> None:
    """Check that an item is one of the response that this one continues."""
    if conversation.known is None:
        conversation.known = {str(read(path, raw, ItemType).id) for raw in conversation.before}
    if name not in conversation.known:
        accepted = (
            "expected the id of an item of previous_response_id or of conversation: send the item "
            "itself"
        )
        raise InvalidField(f"{path}.id", f"is {show(name)}, {accepted}")


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


def _add_reasoning(conversation: ResponseConversation, path: str, item: ReasoningItem) -> None:
    """Add the reasoning's text, or what this server encoded of it, or else its summary."""
    text = _joined(item.content) or decode_text(item.encrypted_content or "")
    text = text or _joined(item.summary)
    if text:
        is_done = conversation.has_text or conversation.has_calls
        conversation.add_reasoning(path, text, is_done=is_done)


def _joined(parts: list[ContentPart] | None) -> str:
    return "\n".join([part.text for part in parts or () if part.text])


def _decode_summary(path: str, content: str) -> str:
    summary = decode_text(content)
    if summary is None:
        problem = "is invalid, expected a summary made by /v1/responses/compact of this server"
        raise InvalidField(path, problem)
    return summary


def _parts(content: str | list[ContentPart] | None) -> list[ContentPart]:
    return content if isinstance(content, list) else [ContentPart("text", content or "")]
