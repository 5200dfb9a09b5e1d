"""Pictures in the messages of a chat: where they are, and what a template gets in their place.

A picture is a part {"type": "image_url", "image_url": {"url": ...}} of a content, as OpenAI has it;
or in a text ![](url) of Markdown, as TGI has it.
Knows no file and no model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidField

Message = Mapping[str, Any]
# A second mark ends the first: else each of many would be followed to the end of the text.
MARKDOWN = re.compile(
    r"!\[\]\(((?:data:|https?://)[^)\s!]*(?:!(?!\[\]\()[^)\s!]*)*)\)", re.IGNORECASE
)
KINDS = ("image_url", "input_image")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where a picture is in a request, and its `url`, which may be a data URI."""

    place: str
    url: str


def find_pictures(messages: Sequence[Message], markdown: str = "") -> list[ImageSource]:
    """Those of all messages, or of a text, in order.  Raises InvalidField for one without a URL."""
    return [ImageSource("prompt", found[1]) for found in MARKDOWN.finditer(markdown)] + [
        _source(f"messages[{i}].content[{j}]", part)
        for i, message in enumerate(messages)
        for j, part in enumerate(_parts(message))
        if _is_picture(part)
    ]


def to_marks(messages: Sequence[Message]) -> list[Message]:
    """`messages` with {"type": "image"} in place of each picture."""
    return [
        {**message, "content": [{"type": "image"} if _is_picture(p) else p for p in parts]}
        if any(map(_is_picture, parts := _parts(message)))
        else message
        for message in messages
    ]


def _parts(message: Message) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in KINDS


def _source(place: str, part: Mapping[str, Any]) -> ImageSource:
    found = part.get("image_url")
    url = found.get("url") if isinstance(found, Mapping) else found
    if not isinstance(url, str) or not url:
        raise InvalidField(f"{place}.image_url", "has no url, expected a data URI of a picture")
    return ImageSource(f"{place}.image_url", url)
