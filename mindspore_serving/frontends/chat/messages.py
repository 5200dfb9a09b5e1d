"""Messages of a chat as a model's template takes them: contents that are text, or parts if there
are images among them; arguments of calls as objects, roles that templates know.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show
from mindspore_serving.frontends.decoding import check_free

_ROLES = {"developer": "system", "function": "tool"}  # names that few templates know
_MAY_BE_EMPTY = frozenset({"assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_IMAGE_PARTS = frozenset({"image_url", "input_image"})


class ImageUrl(msgspec.Struct):
    """A data URI, or an address that the operator allows; `detail` changes nothing."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


def to_template(messages: Sequence[ChatMessage], card: ModelCard) -> list[dict[str, Any]]:
    """Messages for a model.  Raises InvalidField."""
    if not messages:
        raise InvalidField("messages", "is [], expected at least one message")
    names: dict[str, str] = {}  # of the tools that were called, by the id of the call
    found = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        content = _content(place, message, takes_images=card.takes_images)
        found.append({"content": content, **_convert(place, message, names)})
    return found


def _convert(place: str, message: ChatMessage, names: dict[str, str]) -> dict[str, Any]:
    role = message.role
    found: dict[str, Any] = {"role": _ROLES.get(role, role)}
    if message.name is not None:
        found["name"] = message.name
    reasoning = message.reasoning_content or message.reasoning or message.thinking
    if reasoning is not None:
        found["reasoning_content"] = reasoning
    calls = _calls(message)
    if calls:
        found["tool_calls"] = [_call(f"{place}.tool_calls[{i}]", c) for i, c in enumerate(calls)]
        names.update({call.id: call.function.name for call in calls if call.id is not None})
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
        if message.tool_call_id in names:
            found.setdefault("name", names[message.tool_call_id])
    return found


def _calls(message: ChatMessage) -> list[ToolCall]:
    calls = message.tool_calls or []
    if message.function_call is not None:
        calls = [*calls, ToolCall(message.function_call)]
    return calls


def _content(place: str, message: ChatMessage, *, takes_images: bool) -> str | list[dict[str, Any]]:
    """The content; "" in place of null."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.refusal is None and message.role not in _MAY_BE_EMPTY:
            accepted = f"expected text for the role {message.role}"
            raise InvalidField(f"{place}.content", f"is null, {accepted}")
        return message.refusal or ""
    parts = [
        _part(f"{place}.content[{index}]", part, takes_images=takes_images)
        for index, part in enumerate(content)
    ]
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "\n".join([part["text"] for part in parts])


def _part(place: str, part: ContentPart, *, takes_images: bool) -> dict[str, Any]:
    if part.type in _IMAGE_PARTS and takes_images:
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
        if not url:
            raise InvalidField(f"{place}.image_url", "is missing")
        return {"type": "image_url", "image_url": {"url": url}}
    if part.type not in _TEXT_PARTS:
        accepted, others = ("text or image_url", "") if takes_images else ("text", "images, ")
        problem = f"expected {accepted}: the model reads no {others}audio or files"
        raise InvalidField(f"{place}.type", f"is {show(part.type)}, {problem}")
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if name == "refusal" else part.text
    if text is None:
        raise InvalidField(f"{place}.{name}", "is missing")
    return {"type": "text", "text": text}


def _call(place: str, call: ToolCall) -> dict[str, Any]:
    arguments = to_arguments(f"{place}.function.arguments", call.function)
    found: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
    if call.id is not None:
        found["id"] = call.id
    return found


def to_arguments(place: str, called: CalledFunction) -> dict[str, Any] | str:
    """The arguments as an object, which most templates want; as they are if they are none, for a
    model may have written them, and been cut off.
    """
    arguments = called.arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            found = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return arguments
        if not isinstance(found, dict):
            return arguments
        arguments = found
    check_free(place, arguments)
    return arguments
