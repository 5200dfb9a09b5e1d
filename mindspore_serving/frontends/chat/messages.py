"""Messages of a chat in the form that a model's chat template takes.

Contents become text, or parts if there are images, sounds or files among them; arguments of calls
become objects, and roles those that templates know.
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
_URL_PARTS = {  # by type: the field of the URL, and type, of models' messages
    "image_url": "image_url", "input_image": "image_url",
    "video_url": "video_url", "input_video": "video_url", "audio_url": "audio_url",
}  # fmt: skip
_FILE_PARTS = frozenset({"file", "input_file"})


class ImageUrl(msgspec.Struct):
    """A data URI, or a URL that the operator allows; `detail` has no effect."""

    url: str
    detail: str | None = None


class InputAudio(msgspec.Struct):
    """A file of sound as base64; `format` has no effect, as the content tells it."""

    data: str
    format: str | None = None


class FilePart(msgspec.Struct):
    """A PDF or a text: a data URI or base64 in `file_data`, or a URL that the operator allows."""

    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None
    file_id: str | None = None


class ContentPart(msgspec.Struct):
    """Part of a message: text, a refusal, an image, a video, a sound or a file.

    A part of type `file` has the file's fields in `file`, one of type `input_file` by itself.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    video_url: str | ImageUrl | None = None
    audio_url: str | ImageUrl | None = None
    input_audio: InputAudio | None = None
    file: FilePart | None = None
    file_data: str | None = None
    filename: str | None = None
    file_url: str | None = None
    file_id: str | None = None


class PlacedPart(ContentPart):
    """Part that another protocol has in the field `field`."""

    field: str = ""


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
        content = _content(path, message, card)
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


def _content(path: str, message: ChatMessage, card: ModelCard) -> str | list[dict[str, Any]]:
    """Return the content, "" in place of null."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.refusal is None and message.role not in _MAY_BE_EMPTY:
            accepted = f"expected text for the role {message.role}"
            raise InvalidField(f"{path}.content", f"is null, {accepted}")
        return message.refusal or ""
    parts = [_part(f"{path}.content[{index}]", part, card) for index, part in enumerate(content)]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join([part["text"] for part in parts])


def _part(path: str, part: ContentPart, card: ModelCard) -> dict[str, Any]:
    name = _URL_PARTS.get(part.type, "")
    if name and (card.takes_sounds if name == "audio_url" else card.takes_images):
        return _url_part(path, part, name)
    if part.type == "input_audio" and card.takes_sounds:
        return _sound_part(path, part)
    if part.type in _FILE_PARTS and card.reads_files:
        return _file_part(path, part)
    if part.type not in _TEXT_PARTS:
        raise InvalidField(f"{path}.type", f"is {show(part.type)}, {_expected(card)}")
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if name == "refusal" else part.text
    if text is None:
        raise InvalidField(f"{path}.{name}", "is missing")
    return {"type": "text", "text": text}


def _expected(card: ModelCard) -> str:
    rows = [
        (card.takes_images, "images", ("image_url", "video_url")),
        (card.takes_sounds, "audio", ("input_audio", "audio_url")),
        (card.reads_files, "files", ("file",)),
    ]
    accepted = ["text", *(name for takes, _, names in rows if takes for name in names)]
    not_read = [kind for takes, kind, _ in rows if not takes]
    reason = f": the model reads no {_or(not_read)}" if not_read else ""
    return f"expected {_or(accepted)}{reason}"


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _url_part(path: str, part: ContentPart, name: str) -> dict[str, Any]:
    value = getattr(part, name)
    url = value.url if isinstance(value, ImageUrl) else value
    if part.file_id and not url:
        raise _stored(f"{path}.file_id", name)
    if not url:
        raise InvalidField(f"{path}.{name}", "is missing")
    return {"type": name, name: {"url": url}, **_field_of(part)}


def _sound_part(path: str, part: ContentPart) -> dict[str, Any]:
    if part.input_audio is None or not part.input_audio.data:
        raise InvalidField(f"{path}.input_audio.data", "is missing, expected base64 of a file")
    field = f"{path}.input_audio.data"
    return {"type": "input_audio", "input_audio": {"data": part.input_audio.data}, "field": field}


def _file_part(path: str, part: ContentPart) -> dict[str, Any]:
    is_flat = part.type == "input_file"
    file: ContentPart | FilePart = part if is_flat or part.file is None else part.file
    if file is not part:
        path = f"{path}.file"
    names = [name for name in ("file_data", "file_url") if getattr(file, name)]
    if file.file_id and not names:
        raise _stored(f"{path}.file_id", "file_data")
    if not names:
        raise InvalidField(f"{path}.file_data", "is missing, expected a data URI")
    content = {names[0]: getattr(file, names[0])}
    if file.filename:
        content["filename"] = file.filename
    return {"type": "file", "file": content, "field": f"{path}.{names[0]}", **_field_of(part)}


def _field_of(part: ContentPart) -> dict[str, str]:
    return {"field": part.field} if isinstance(part, PlacedPart) else {}


def _stored(field: str, name: str) -> InvalidField:
    problem = f"names a stored file, which models do not read: send {name} with a data URI"
    return InvalidField(field, problem)


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
