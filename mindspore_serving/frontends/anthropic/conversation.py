"""Conversations of content blocks as messages of a chat, and their ignored fields.

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
    FilePart,
    PlacedPart,
    ToolCall,
)
from mindspore_serving.frontends.chat.opaque import is_signed
from mindspore_serving.frontends.chat.turns import ChatTurns
from mindspore_serving.frontends.chat.unknown_fields import report_kinds
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.mcp.names import tool_name

_ACCEPTED = {  # by role
    "system": ("text",),
    "user": ("text", "image", "document", "tool_result"),
    "assistant": (
        *("text", "thinking", "redacted_thinking", "tool_use"),
        *("mcp_tool_use", "mcp_tool_result"),
    ),
}
_MCP = ("mcp_tool_use", "mcp_tool_result")
_RESULT = ("text", "image", "document")
_MEDIA = {"image": "images", "document": "documents", "search_result": "search results"}
_REQUIRED = {  # by type
    "text": ["text"],
    "image": ["source"],
    "document": ["source"],
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
            _add(conversation, role, f"{path}[{index}]", block, card)
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


def _add(conversation: ChatTurns, role: str, path: str, block: Block, card: ModelCard) -> None:
    if role == "assistant" and _is_of_server(block):
        return
    _check(path, block, _ACCEPTED[role], f"a message of {role}")
    if block.type == "text":
        conversation.turn_of(role).add_text(block.text)
    elif block.type in _MEDIA:
        conversation.turn_of(role).texts.extend(_media(path, block, card, f"a message of {role}"))
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
        parts = _parts_of(f"{path}.content", block.content, card, "a tool's result")
        if block.is_error:
            is_text = bool(parts) and parts[0].type == "text"
            first = parts.pop(0).text if is_text else ""
            parts.insert(0, ContentPart("text", f"Error: {first}"))
        conversation.add_result(block.tool_use_id, parts)


def _parts_of(
    path: str, content: str | list[Block] | Block | None, card: ModelCard, where: str
) -> list[ContentPart]:
    """Return the parts of a content that has texts, images and documents alone."""
    if isinstance(content, Block):
        content = [content]
    if not isinstance(content, list):
        return [ContentPart("text", content or "")]
    parts: list[ContentPart] = []
    for index, block in enumerate(content):
        _check(f"{path}[{index}]", block, _RESULT, where)
        if block.type == "text":
            parts.append(ContentPart("text", block.text))
        else:
            parts += _media(f"{path}[{index}]", block, card, where)
    return parts


def _media(path: str, block: Block, card: ModelCard, where: str) -> list[ContentPart]:
    """Return the parts of an image or a document."""
    if not (card.takes_images if block.type == "image" else card.reads_files):
        _refuse(path, block, ("text",), where)
    source, field = block.source, f"{path}.source"
    assert source is not None
    name, url = ("data", source.data) if source.type == "base64" else ("url", source.url)
    if source.type == "base64" and url:
        url = f"data:{source.media_type or ''};base64,{url}"
    elif source.type != "url":
        url = None
    if block.type == "image":
        if not url:
            raise InvalidField(
                field, "has no image, expected type base64 with data, or type url with url"
            )
        return [PlacedPart("image_url", image_url=url, field=f"{field}.{name}")]
    if url:
        key = "file_data" if name == "data" else "file_url"
        file = FilePart(filename=block.title, **{key: url})
        parts: list[ContentPart] = [PlacedPart("file", file=file, field=f"{field}.{name}")]
        return [*_texts(block.context), *parts]
    if source.type == "text" and source.data is not None:
        return _texts(block.title, block.context, source.data)
    if source.type == "content" and source.content is not None:
        inner = _parts_of(f"{field}.content", source.content, card, "a document")
        return [*_texts(block.title, block.context), *inner]
    accepted = "expected type base64 or text with data, url with url, or content with content"
    raise InvalidField(field, f"has no document, {accepted}")


def _texts(*texts: str | None) -> list[ContentPart]:
    return [ContentPart("text", text) for text in texts if text]


def _refuse(path: str, block: Block, accepted: Sequence[str], where: str) -> None:
    why = f": the model reads no {_MEDIA[block.type]}" if block.type in _MEDIA else ""
    raise unexpected(f"{path}.type", block.type, f"{' or '.join(accepted)} in {where}{why}")


def _check(path: str, block: Block, accepted: Sequence[str], where: str) -> None:
    """Check that a block has an accepted type and the fields of its type.

    Raises InvalidField.
    """
    if block.type not in accepted:
        _refuse(path, block, accepted, where)
    for name in _REQUIRED.get(block.type, ()):
        if getattr(block, name) is None:
            raise InvalidField(f"{path}.{name}", "is missing")
