"""Messages of a chat in the form that a model's chat template takes.

Contents become text, or parts if there are images among them; arguments of calls become objects,
and roles those that templates know.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import show
from mindspore_serving.frontends.decoding import check_free

_ROLES = {"developer": "system", "function": "tool"}  # roles that few templates know
_MAY_BE_EMPTY = frozenset({"assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_IMAGE_PARTS = frozenset({"image_url", "input_image"})


class ImageUrl(msgspec.Struct):
    """A data URI, or a URL that the operator allows; `detail` has no effect."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct):
    """Part of a message: text, a refusal or an image."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None


class CalledFunction(msgspec.Struct):
    """Name and arguments of a call."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(msgspec.Struct):
    """Name and input of a call of a custom tool."""

    name: str
    input: str


class ToolCall(msgspec.Struct):
    """Call of a tool in a message of the assistant, in the field `function` or `custom`."""

    function: CalledFunction | None = None
    id: str | None = None
    type: str | None = None
    custom: CalledCustom | None = None


class ChatMessage(msgspec.Struct):
    """A message; the reasoning has a field in the spelling of each client."""

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
    """Return the messages for the chat template.

    Raises InvalidField.
    """
    if not messages:
        raise InvalidField("messages", "is [], expected at least one message")
    names: dict[str, str] = {}  # name of the called tool, by the id of the call
    converted = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        content = _content(path, message, takes_images=card.takes_images)
        converted.append({"content": content, **_convert(path, message, names)})
    return converted


def _convert(path: str, message: ChatMessage, names: dict[str, str]) -> dict[str, Any]:
    role = message.role
    converted: dict[str, Any] = {"role": _ROLES.get(role, role)}
    if message.name is not None:
        converted["name"] = message.name
    reasoning = message.reasoning_content or message.reasoning or message.thinking
    if reasoning is not None:
        converted["reasoning_content"] = reasoning
    calls = _calls(message)
    if calls:
        converted["tool_calls"] = [_call(f"{path}.tool_calls[{i}]", c) for i, c in enumerate(calls)]
        called = [call["function"]["name"] for call in converted["tool_calls"]]
        names.update({c.id: name for c, name in zip(calls, called, strict=True) if c.id})
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
        if message.tool_call_id in names:
            converted.setdefault("name", names[message.tool_call_id])
    return converted


def _calls(message: ChatMessage) -> list[ToolCall]:
    calls = message.tool_calls or []
    if message.function_call is not None:
        calls = [*calls, ToolCall(message.function_call)]
    return calls


def _content(path: str, message: ChatMessage, *, takes_images: bool) -> str | list[dict[str, Any]]:
    """Return the content, "" in place of null."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.refusal is None and message.role not in _MAY_BE_EMPTY:
            accepted = f"expected text for the role {message.role}"
            raise InvalidField(f"{path}.content", f"is null, {accepted}")
        return message.refusal or ""
    parts = [
        _part(f"{path}.content[{index}]", part, takes_images=takes_images)
        for index, part in enumerate(content)
    ]
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "\n".join([part["text"] for part in parts])


def _part(path: str, part: ContentPart, *, takes_images: bool) -> dict[str, Any]:
    if part.type in _IMAGE_PARTS and takes_images:
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
        if not url:
            raise InvalidField(f"{path}.image_url", "is missing")
        return {"type": "image_url", "image_url": {"url": url}}
    if part.type not in _TEXT_PARTS:
        accepted, not_read = ("text or image_url", "") if takes_images else ("text", "images, ")
        problem = f"expected {accepted}: the model reads no {not_read}audio or files"
        raise InvalidField(f"{path}.type", f"is {show(part.type)}, {problem}")
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if name == "refusal" else part.text
    if text is None:
        raise InvalidField(f"{path}.{name}", "is missing")
    return {"type": "text", "text": text}


def _call(path: str, call: ToolCall) -> dict[str, Any]:
    called = call.function
    if called is None and call.custom is not None:
        called = CalledFunction(call.custom.name, {"input": call.custom.input})
    if called is None:
        raise InvalidField(f"{path}.function", "is missing")
    arguments = to_arguments(f"{path}.function.arguments", called)
    converted: dict[str, Any] = {
        "type": "function",
        "function": {"name": called.name, "arguments": arguments},
    }
    if call.id is not None:
        converted["id"] = call.id
    return converted


def to_arguments(path: str, called: CalledFunction) -> dict[str, Any] | str:
    """Return the arguments of a call as an object, which most templates expect.

    A string that is no JSON object stays as it is: a model may have written it and been cut off.
    """
    arguments = called.arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            decoded = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return arguments
        if not isinstance(decoded, dict):
            return arguments
        arguments = decoded
    check_free(path, arguments)
    return arguments
