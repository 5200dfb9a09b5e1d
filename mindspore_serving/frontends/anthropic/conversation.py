"""ChatTurnss of content blocks as messages of a chat, and their ignored fields.

The blocks of a message may become several messages, and consecutive messages of a role become one.
"""

from collections.abc import Iterator, Sequence

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.anthropic.requests import Block, CountRequest
from mindspore_serving.frontends.anthropic.tools import TOOLSET, is_offered
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.messages import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    ToolCall,
)
from mindspore_serving.frontends.chat.opaque import is_signed
from mindspore_serving.frontends.chat.turns import ChatTurns
from mindspore_serving.frontends.chat.unknown_fields import report_kinds
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.mcp.names import tool_name

_ACCEPTED = {  # by role
    "system": ("text",),
    "user": ("text", "image", "tool_result"),
    "assistant": (
        *("text", "thinking", "redacted_thinking", "tool_use"),
        *("mcp_tool_use", "mcp_tool_result"),
    ),
}
_MCP = ("mcp_tool_use", "mcp_tool_result")
_MEDIA = ("image", "document", "search_result")
_REQUIRED = {  # by type
    "text": ["text"],
    "image": ["source"],
    "thinking": ["thinking"],
    "tool_result": ["tool_use_id"],
    "tool_use": ["id", "name", "input"],
    "mcp_tool_use": ["id", "name", "server_name", "input"],
    "mcp_tool_result": ["tool_use_id"],
}


def to_messages(body: CountRequest, card: ModelCard) -> list[ChatMessage]:
    """Return the messages of the chat, the system prompt first.

    Raises InvalidField.
    """
    conversation = ChatTurns()
    for path, role, content in _turns(body):
        if isinstance(content, str):
            conversation.turn_of(role).add_text(content)
            continue
        if not content:
            raise InvalidField(path, "is [], expected a text or at least one block")
        for index, block in enumerate(content):
            if block.type == "image" and not card.takes_images:
                _refuse(f"{path}[{index}]", block, ("text",), f"of {role}")
            _add(conversation, role, f"{path}[{index}]", block)
    if conversation.awaits_result:
        raise InvalidField("messages", "ends with a tool_use, expected its tool_result after it")
    return conversation.to_messages()


def find_ignored(body: CountRequest) -> Iterator[str]:
    """Iterate over the names of fields, tools and blocks that have no effect here."""
    unread = [*_find_unread(body)]
    report_kinds("/v1/messages", [kind for _, kind in unread])
    yield from (path for path, _ in unread)
    if body.context_management is not None:
        yield "context_management"
    if body.thinking is not None:
        is_on = body.thinking.type == "enabled"
        names = ("display",) if is_on else ("budget_tokens", "display")
        yield from (f"thinking.{name}" for name in names if getattr(body.thinking, name))
    blocks = [block for _, _, content in _turns(body) for block in _flatten(content)]
    if any(block.type == "thinking" and not _is_ours(block) for block in blocks):
        yield "messages.content.thinking"
    if any(part.cache_control is not None for part in (body, *blocks, *(body.tools or ()))):
        yield "cache_control"


def _find_unread(body: CountRequest) -> Iterator[tuple[str, str]]:
    """Iterate over path and type of the tools and blocks that the model does not see."""
    for index, tool in enumerate(body.tools or ()):
        is_toolset = tool.type == TOOLSET and body.mcp_servers
        if not is_offered(tool) and not is_toolset:
            yield f"tools[{index}]", tool.type or ""
    for path, _, content in _turns(body):
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if _is_of_server(block):
                yield f"{path}[{index}]", block.type


def _is_of_server(block: Block) -> bool:
    """Return whether a block is of a tool that only Anthropic's server runs."""
    if block.type in _MCP:
        return False
    return block.type == "server_tool_use" or block.type.endswith("_tool_result")


def _is_ours(block: Block) -> bool:
    """Return whether this server wrote the thinking of a block, and nobody changed it."""
    return is_signed(block.thinking or "", block.signature)


def _turns(body: CountRequest) -> Iterator[tuple[str, str, str | list[Block]]]:
    """Iterate over path, role and content of the system prompt and of each message."""
    if body.system:
        yield "system", "system", body.system
    for index, message in enumerate(body.messages):
        if message.role not in _ACCEPTED:
            accepted = ", ".join(_ACCEPTED)
            raise unexpected(f"messages[{index}].role", message.role, f"one of {accepted}")
        yield f"messages[{index}].content", message.role, message.content


def _flatten(content: str | Sequence[Block] | Block | None) -> Iterator[Block]:
    for block in content if isinstance(content, list) else ():
        yield block
        yield from _flatten(block.content)


def _add(conversation: ChatTurns, role: str, path: str, block: Block) -> None:
    if role == "assistant" and _is_of_server(block):
        return
    _check(path, block, _ACCEPTED[role], f"of {role}")
    if block.type == "text":
        conversation.turn_of(role).add_text(block.text)
    elif block.type == "image":
        conversation.turn_of(role).texts.append(_image_part(f"{path}.source", block))
    elif block.type == "thinking":
        if _is_ours(block):
            conversation.turn_of(role).reasoning.append(block.thinking or "")
    elif block.type in ("tool_use", "mcp_tool_use"):
        check_free(f"{path}.input", block.input)
        name = block.name or ""
        if block.server_name is not None:
            name = tool_name(block.server_name, name)
        called = CalledFunction(name, block.input)
        conversation.turn_of(role).calls.append(ToolCall(called, block.id, "function"))
    elif block.type in ("tool_result", "mcp_tool_result"):
        text = _text(f"{path}.content", block.content)
        conversation.add_result(block.tool_use_id, f"Error: {text}" if block.is_error else text)


def _text(path: str, content: str | list[Block] | Block | None) -> str:
    """Return the text of a tool's result."""
    if isinstance(content, Block):
        content = [content]
    if not isinstance(content, list):
        return content or ""
    for index, block in enumerate(content):
        _check(f"{path}[{index}]", block, ("text",), "of a tool's result")
    return "\n".join([block.text or "" for block in content])


def _image_part(path: str, block: Block) -> ContentPart:
    source = block.source
    assert source is not None
    if source.type == "base64" and source.data:
        return ContentPart(
            "image_url", image_url=f"data:{source.media_type or ''};base64,{source.data}"
        )
    if source.type == "url" and source.url:
        return ContentPart("image_url", image_url=source.url)
    raise InvalidField(path, "has no image, expected type base64 with data, or type url with url")


def _refuse(path: str, block: Block, accepted: Sequence[str], where: str) -> None:
    why = ": the model reads no images or documents" if block.type in _MEDIA else ""
    expected = f"{' or '.join(accepted)} in a message {where}"
    raise unexpected(f"{path}.type", block.type, f"{expected}{why}")


def _check(path: str, block: Block, accepted: Sequence[str], where: str) -> None:
    """Check that a block has an accepted type and the fields of its type.

    Raises InvalidField.
    """
    if block.type not in accepted:
        _refuse(path, block, accepted, where)
    for name in _REQUIRED.get(block.type, ()):
        if getattr(block, name) is None:
            raise InvalidField(f"{path}.{name}", "is missing")
