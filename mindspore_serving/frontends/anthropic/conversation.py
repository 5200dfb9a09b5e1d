"""A conversation of content blocks as messages of a chat: what one message has in several blocks
is several messages there, or one; and the names of what is in it and ignored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.anthropic.requests import Block, CountRequest
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.messages import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    ToolCall,
)
from mindspore_serving.frontends.decoding import check_free

_ACCEPTED = {  # by role
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
_MEDIA = ("image", "document", "search_result")
_NEEDED = {  # by type
    "text": ["text"],
    "image": ["source"],
    "thinking": ["thinking"],
    "tool_result": ["tool_use_id"],
    "tool_use": ["id", "name", "input"],
}


@dataclass(slots=True)
class _Said:
    """What one role says, in one message or several in turn."""

    role: str
    texts: list[ContentPart] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    answers: str | None = None  # the id of the call that a tool answers

    def to_message(self) -> ChatMessage:
        return ChatMessage(
            self.role,
            self.texts or None,
            tool_calls=self.calls or None,
            tool_call_id=self.answers,
            reasoning_content="".join(self.thoughts) or None,
        )


class _Conversation:
    def __init__(self) -> None:
        self._said: list[_Said] = []

    def by(self, role: str) -> _Said:
        """What `role` says now."""
        if not self._said or self._said[-1].role != role:
            self._said.append(_Said(role))
        return self._said[-1]

    def answer(self, block: Block, text: str) -> None:
        """What a tool gave."""
        text = f"Error: {text}" if block.is_error else text
        self._said.append(_Said("tool", [ContentPart("text", text)], answers=block.tool_use_id))

    def to_messages(self) -> list[ChatMessage]:
        return [one.to_message() for one in self._said]


def to_messages(body: CountRequest, card: ModelCard) -> list[ChatMessage]:
    """The messages of a chat with a model, the system prompt first.  Raises InvalidField."""
    found = _Conversation()
    for place, role, content in _turns(body):
        if isinstance(content, str):
            found.by(role).texts.append(ContentPart("text", content))
            continue
        if not content:
            raise InvalidField(place, "is [], expected a text or at least one block")
        for index, block in enumerate(content):
            if block.type == "image" and not card.takes_images:
                _refuse(f"{place}[{index}]", block, ("text",), f"of {role}")
            _add(found, role, f"{place}[{index}]", block)
    messages = found.to_messages()
    if messages and messages[-1].role == "assistant" and messages[-1].tool_calls:
        raise InvalidField("messages", "ends with a tool_use, expected its tool_result behind it")
    return messages


def find_ignored(body: CountRequest) -> Iterator[str]:
    """The names of fields that are given and change nothing here, but may elsewhere."""
    if body.context_management is not None:
        yield "context_management"
    if body.thinking is not None:
        names = ("budget_tokens", "display")
        yield from (f"thinking.{name}" for name in names if getattr(body.thinking, name))
    blocks = [block for _, _, content in _turns(body) for block in _all(content)]
    if any(one.cache_control is not None for one in (body, *blocks, *(body.tools or ()))):
        yield "cache_control"


def _turns(body: CountRequest) -> Iterator[tuple[str, str, str | list[Block]]]:
    """Place, role and content of the system prompt and of each message."""
    if body.system:
        yield "system", "system", body.system
    for index, message in enumerate(body.messages):
        if message.role not in _ACCEPTED:
            accepted = ", ".join(_ACCEPTED)
            raise unexpected(f"messages[{index}].role", message.role, f"one of {accepted}")
        yield f"messages[{index}].content", message.role, message.content


def _all(content: str | Sequence[Block] | None) -> Iterator[Block]:
    for block in content if isinstance(content, list) else ():
        yield block
        yield from _all(block.content)


def _add(found: _Conversation, role: str, place: str, block: Block) -> None:
    _check(place, block, _ACCEPTED[role], f"of {role}")
    if block.type == "text":
        found.by(role).texts.append(ContentPart("text", block.text))
    elif block.type == "image":
        found.by(role).texts.append(_image(f"{place}.source", block))
    elif block.type == "thinking":
        found.by(role).thoughts.append(block.thinking or "")
    elif block.type == "tool_use":
        check_free(f"{place}.input", block.input)
        called = CalledFunction(block.name or "", block.input)
        found.by(role).calls.append(ToolCall(called, block.id, "function"))
    elif block.type == "tool_result":
        found.answer(block, _text(f"{place}.content", block.content))


def _text(place: str, content: str | list[Block] | None) -> str:
    """What a tool gave."""
    if not isinstance(content, list):
        return content or ""
    for index, block in enumerate(content):
        _check(f"{place}[{index}]", block, ("text",), "of a tool's result")
    return "\n".join([block.text or "" for block in content])


def _image(place: str, block: Block) -> ContentPart:
    source = block.source
    assert source is not None
    if source.type == "base64" and source.data:
        return ContentPart(
            "image_url", image_url=f"data:{source.media_type or ''};base64,{source.data}"
        )
    if source.type == "url" and source.url:
        return ContentPart("image_url", image_url=source.url)
    raise InvalidField(place, "has no image, expected type base64 with data, or url with url")


def _refuse(place: str, block: Block, accepted: Sequence[str], where: str) -> None:
    why = ": the model reads no images or documents" if block.type in _MEDIA else ""
    expected = f"{' or '.join(accepted)} in a message {where}"
    raise unexpected(f"{place}.type", block.type, f"{expected}{why}")


def _check(place: str, block: Block, accepted: Sequence[str], where: str) -> None:
    """Raises InvalidField for a block that is of another type, or lacks what its type needs."""
    if block.type not in accepted:
        _refuse(place, block, accepted, where)
    for name in _NEEDED.get(block.type, ()):
        if getattr(block, name) is None:
            raise InvalidField(f"{place}.{name}", "is missing")
