"""Images in the messages of a chat, and the marks that a template gets in their place.

An image is a part {"type": "image_url", "image_url": {"url": ...}} of a message's content, as in
OpenAI's API, or ![](url) of Markdown in a text, as in TGI's. Knows no file and no model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidField

Message = Mapping[str, Any]
# A second "![](" ends the first: otherwise each of many would be matched to the end of the text.
MARKDOWN = re.compile(
    r"!\[\]\(((?:data:|https?://)[^)\s!]*(?:!(?!\[\]\()[^)\s!]*)*)\)", re.IGNORECASE
)
KINDS = ("image_url", "input_image")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image of a request: the field that holds it, and its `url`, which may be a data URI."""

    field: str
    url: str


def find_images(messages: Sequence[Message], markdown: str = "") -> list[ImageSource]:
    """Return the images of all messages, or of a text, in order.

    Raises InvalidField for an image without a URL.
    """
    return [ImageSource("prompt", match[1]) for match in MARKDOWN.finditer(markdown)] + [
        _source(f"messages[{i}].content[{j}]", part)
        for i, message in enumerate(messages)
        for j, part in enumerate(_parts(message))
        if _is_image(part)
    ]


def to_marks(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with {"type": "image"} instead of each image."""
    return [
        {**message, "content": [{"type": "image"} if _is_image(p) else p for p in parts]}
        if any(map(_is_image, parts := _parts(message)))
        else message
        for message in messages
    ]


def _parts(message: Message) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in KINDS


def _source(part_field: str, part: Mapping[str, Any]) -> ImageSource:
    image_url = part.get("image_url")
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    field = f"{part_field}.image_url"
    if not isinstance(url, str) or not url:
        raise InvalidField(field, "has no url, expected a data URI of an image")
    return ImageSource(field, url)
