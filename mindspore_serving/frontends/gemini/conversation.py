"""Contents as messages of a chat, and the parts and tools that the model does not see."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.chat.messages import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    FilePart,
    PlacedPart,
    ToolCall,
)
from mindspore_serving.frontends.chat.turns import ChatTurns
from mindspore_serving.frontends.chat.unknown_fields import report_kinds
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.gemini.requests import (
    GeminiContent,
    GeminiFunctionResponse,
    GeminiPart,
    GeminiResultPart,
    GenerateContentRequest,
)

_ROLES = {"user": "user", "function": "user", "model": "assistant"}
_NOT_SEEN = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_MEDIA = ("inlineData", "fileData")
_URL_SAFE = str.maketrans("-_", "+/")  # Google's Python library writes base64 for URLs


class _Reader:
    """Makes the messages; `card` says whether the model reads images and sounds."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._num_calls = 0
        self._unanswered: deque[tuple[str, str]] = deque()  # name and id of calls
        self.conversation = ChatTurns()

    def add(self, path: str, role: str, part: GeminiPart) -> None:
        """Add a part.  Raises InvalidField."""
        if part.functionCall is not None:
            self._add_call(f"{path}.functionCall", part)
        elif part.functionResponse is not None:
            self._add_result(f"{path}.functionResponse", part.functionResponse)
        elif part.inlineData is not None or part.fileData is not None:
            self.conversation.turn_of(role).texts.append(self._media(path, part))
        elif part.thought and role == "assistant":
            self.conversation.turn_of(role).reasoning.append(part.text or "")
        elif part.text:
            self.conversation.turn_of(role).add_text(part.text)

    def _add_call(self, path: str, part: GeminiPart) -> None:
        call = part.functionCall
        assert call is not None
        check_free(f"{path}.args", call.args)
        self._num_calls += 1
        name = call.id or f"call_{self._num_calls}"
        self._unanswered.append((call.name, name))
        called = CalledFunction(call.name, call.args or {})
        self.conversation.turn_of("assistant").calls.append(ToolCall(called, name, "function"))

    def _add_result(self, path: str, result: GeminiFunctionResponse) -> None:
        check_free(f"{path}.response", result.response)
        known = (each for each in self._unanswered if each[0] == result.name)
        call = (result.name, result.id) if result.id else next(known, None)
        if call is not None and call in self._unanswered:
            self._unanswered.remove(call)
        parts = [ContentPart("text", _text_of(result.response or {}))]
        parts += [
            self._media(f"{path}.parts[{index}]", part)
            for index, part in enumerate(result.parts or ())
        ]
        self.conversation.add_result(call[1] if call else None, parts, result.name)

    def _media(self, path: str, part: GeminiPart | GeminiResultPart) -> ContentPart:
        """Return an image, a video, a sound or a document, by its MIME type, else an image."""
        name, blob, file = _MEDIA[part.inlineData is None], part.inlineData, part.fileData
        if blob is not None:
            kind, field = blob.mimeType, f"{path}.{name}.data"
            url = f"data:{kind};base64,{blob.data.translate(_URL_SAFE)}"
        elif file is not None:
            kind, field, url = file.mimeType, f"{path}.{name}.fileUri", file.fileUri
        else:
            raise InvalidField(path, "has no inlineData and no fileData")
        top = kind.partition("/")[0] or "image"
        is_document = kind == "application/pdf" or top == "text"
        takes, what = self._card.takes_images, "images"
        if top == "audio":
            takes, what = self._card.takes_sounds, "audio"
        elif is_document:
            takes, what = self._card.reads_files, "documents"
        if not takes:
            raise InvalidField(f"{path}.{name}", f"is not supported: the model reads no {what}")
        if is_document:
            return PlacedPart("file", file=FilePart(file_url=url), field=field)
        if top == "audio":
            return PlacedPart("audio_url", audio_url=url, field=field)
        if top == "video":
            return PlacedPart("video_url", video_url=url, field=field)
        if top != "image":
            raise unexpected(
                f"{path}.{name}.mimeType", kind, "that of an image, video, sound, PDF or text"
            )
        return PlacedPart("image_url", image_url=url, field=field)


def to_messages(body: GenerateContentRequest, card: ModelCard) -> list[ChatMessage]:
    """Return the messages of the chat, the system's first.  Raises InvalidField."""
    reader = _Reader(card)
    if body.systemInstruction is not None:
        for index, part in enumerate(body.systemInstruction.parts):
            reader.add(f"systemInstruction.parts[{index}]", "system", part)
    for path, role, part in _parts(body.contents):
        reader.add(path, role, part)
    if reader.conversation.awaits_result:
        raise InvalidField(
            "contents", "ends with a functionCall, expected its functionResponse after it"
        )
    return reader.conversation.to_messages()


def text_of(path: str, content: GeminiContent) -> str:
    """Return the text of a content that has nothing else.  Raises InvalidField."""
    for index, part in enumerate(content.parts):
        if part.text is None:
            raise InvalidField(f"{path}.parts[{index}].text", "is missing: only texts are read")
    return "".join(part.text or "" for part in content.parts)


def find_ignored(body: GenerateContentRequest) -> Iterator[str]:
    """Iterate over the names of the fields, tools and parts that have no effect here."""
    unread = [*_find_unread(body)]
    report_kinds("generateContent", [kind for _, kind in unread])
    yield from (path for path, _ in unread)
    if body.safetySettings:
        yield "safetySettings"


def _find_unread(body: GenerateContentRequest) -> Iterator[tuple[str, str]]:
    """Iterate over path and kind of the tools and parts that the model does not see."""
    for index, tool in enumerate(body.tools or ()):
        for name in tool.__struct_fields__:
            if name != "functionDeclarations" and getattr(tool, name) is not None:
                yield f"tools[{index}].{name}", name
    for path, _, part in _parts(body.contents):
        for name in _NOT_SEEN:
            if getattr(part, name) is not None:
                yield f"{path}.{name}", name


def _parts(contents: Sequence[GeminiContent]) -> Iterator[tuple[str, str, GeminiPart]]:
    """Iterate over path, role in a chat, and part.  Raises InvalidField for an unknown role."""
    for index, content in enumerate(contents):
        role = _ROLES.get(content.role or "user")
        if role is None:
            raise unexpected(f"contents[{index}].role", content.role, "user, model or function")
        for number, part in enumerate(content.parts):
            yield f"contents[{index}].parts[{number}]", role, part


def _text_of(response: dict[str, Any]) -> str:
    """Return the text of a result: its `error` or `output` if it has nothing else, or all of it."""
    for name, mark in (("error", "Error: "), ("output", ""), ("result", "")):
        if [*response] == [name]:
            value = response[name]
            return mark + (value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return msgspec.json.encode(response).decode()
