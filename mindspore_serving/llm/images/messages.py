"""Files in the messages of a chat, and the parts that take their places.

Each is a part of a message's content, as in OpenAI's API: {"type": "image_url", "image_url":
{"url": ...}}, {"type": "video_url", ...}, {"type": "audio_url", ...}, {"type": "input_audio",
"input_audio": {"data": ...}} and {"type": "file", "file": {"file_data": ...}}, and may have the
`field` that errors name.  Images are also ![](url) of Markdown in a text, as in TGI's.
Knows no file and no model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidField

Message = Mapping[str, Any]
Part = dict[str, Any]
# A second "![](" ends the first: otherwise each of many would be matched to the end of the text.
MARKDOWN = re.compile(
    r"!\[\]\(((?:data:|https?://)[^)\s!]*(?:!(?!\[\]\()[^)\s!]*)*)\)", re.IGNORECASE
)
IMAGE, VIDEO, AUDIO, DOCUMENT = "image", "video", "audio", "document"
PHRASES = {IMAGE: "an image", VIDEO: "a video", AUDIO: "a sound"}
_URLS = {IMAGE: "image_url", VIDEO: "video_url", AUDIO: "audio_url"}  # fields of parts
_KINDS = {
    "image_url": IMAGE, "input_image": IMAGE, "video_url": VIDEO, "input_video": VIDEO,
    "audio_url": AUDIO, "input_audio": AUDIO, "file": DOCUMENT, "input_file": DOCUMENT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MediaSource:
    """A file of a request: the field that holds it, its `url`, which may be a data URI, its kind.

    `name` is that of a document, "" if it has none.  `content` is the file itself, in place of an
    address.
    """

    field: str
    url: str
    kind: str = IMAGE
    name: str = ""
    content: bytes = b""


def has_media(messages: Sequence[Message], markdown: str = "") -> bool:
    """Return whether there are files in messages, or images in a text."""
    return MARKDOWN.search(markdown) is not None or any(
        _kind(part) for message in messages for part in _parts(message)
    )


def find_media(messages: Sequence[Message], markdown: str = "") -> list[MediaSource]:
    """Return the files of all messages, or the images of a text, in order.

    Raises InvalidField for a part without a URL.
    """
    return [MediaSource("prompt", match[1]) for match in MARKDOWN.finditer(markdown)] + [
        _source(f"messages[{i}].content[{j}]", part)
        for i, message in enumerate(messages)
        for j, part in enumerate(_parts(message))
        if _kind(part)
    ]


def replace_media(
    messages: Sequence[Message], replacements: Iterator[Sequence[Part]]
) -> list[dict[str, Any]]:
    """Return `messages` with the next of `replacements` in place of each file.

    A content of texts alone becomes a text, which every template takes.
    """
    return [
        {**message, "content": _replaced(parts, replacements)}
        if any(map(_kind, parts := _parts(message)))
        else dict(message)
        for message in messages
    ]


def text_part(text: str) -> Part:
    """Return a text as a part of a content."""
    return {"type": "text", "text": text}


def parts_of(messages: Sequence[Message]) -> Iterator[Any]:
    """Iterate over the parts of all messages."""
    return (part for message in messages for part in _parts(message))


def _replaced(parts: list[Any], replacements: Iterator[Sequence[Part]]) -> list[Any] | str:
    replaced: list[Any] = []
    for part in parts:
        replaced += next(replacements) if _kind(part) else [part]
    texts = [part.get("text") for part in replaced if isinstance(part, Mapping)]
    if len(texts) == len(replaced) and all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts))
    return replaced


def _parts(message: Message) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return _KINDS.get(kind, "") if isinstance(kind, str) else ""


def _source(part_field: str, part: Mapping[str, Any]) -> MediaSource:
    kind = _kind(part)
    if kind == DOCUMENT:
        return _document(part_field, part)
    if part.get("input_audio") is not None:
        return _sound(part_field, part)
    name = _URLS[kind]
    field, value = part.get("field", f"{part_field}.{name}"), part.get(name)
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise InvalidField(field, f"has no url, expected a data URI of {PHRASES[kind]}")
    return MediaSource(field, url, kind)


def _sound(part_field: str, part: Mapping[str, Any]) -> MediaSource:
    """Return the sound of a part `input_audio`, whose `format` is told by its content instead."""
    sound = part["input_audio"]
    data = sound.get("data") if isinstance(sound, Mapping) else None
    field = part.get("field", f"{part_field}.input_audio.data")
    if isinstance(data, bytes):  # of a piece of a recording
        return MediaSource(field, "", AUDIO, content=data)
    if not isinstance(data, str) or not data:
        raise InvalidField(field, "is missing, expected base64 of a file of sound")
    url = data if data[:5].lower() == "data:" else f"data:;base64,{data}"
    return MediaSource(field, url, AUDIO)


def _document(part_field: str, part: Mapping[str, Any]) -> MediaSource:
    """Return a document, whose fields are those of the part or of its field `file`."""
    file = part.get("file", part)
    file = file if isinstance(file, Mapping) else {}
    field = part_field if file is part else f"{part_field}.file"
    url, name = file.get("file_data"), file.get("filename")
    if isinstance(url, str) and url and url[:5].lower() != "data:":
        url = f"data:;base64,{url}"  # OpenAI's own clients send either
    field, url = (f"{field}.file_data", url) if url else (f"{field}.file_url", file.get("file_url"))
    if not isinstance(url, str) or not url:
        raise InvalidField(field, "is missing, expected file_data: a data URI of a PDF or a text")
    return MediaSource(
        part.get("field", field), url, DOCUMENT, name if isinstance(name, str) else ""
    )
