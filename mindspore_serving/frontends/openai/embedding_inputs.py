"""Inputs of /v1/embeddings: texts, token ids and images, in OpenAI's field and in a chat's form."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.reading_messages import EmbeddedImage
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Int, unexpected
from mindspore_serving.frontends.chat.messages import ImageUrl
from mindspore_serving.frontends.chat.prompts import Prompt, to_prompts

_KINDS = {"text": "text", "input_text": "text", "image_url": "image", "input_image": "image"}
_FORMS = "a text, texts, token ids, lists of token ids, or objects with text or image_url"


class EmbeddingPart(msgspec.Struct):
    """Input that is a text, or an image as a data URI or a URL; `image` is another name."""

    type: str | None = None
    text: str | None = None
    image_url: str | ImageUrl | None = None
    image: str | None = None

    @property
    def url(self) -> str | None:
        """URL of the image; None if there is none."""
        url = self.image if self.image_url is None else self.image_url
        return url.url if isinstance(url, ImageUrl) else url


class EmbeddingMessage(msgspec.Struct):
    """Message whose only text or image is embedded."""

    content: str | list[EmbeddingPart]
    role: str = "user"


class Inputs(NamedTuple):
    """Fields of `Embed`."""

    prompts: list[Prompt]
    images: list[EmbeddedImage]
    messages: list[dict[str, Any]] = []


EmbeddingInput = str | list[str | Int | list[Int] | EmbeddingPart]


def read_inputs(
    value: EmbeddingInput | UnsetType, messages: Sequence[EmbeddingMessage] | None, card: ModelCard
) -> Inputs:
    """Return the prompts, with "" for each image, and the images; or a conversation.

    Raises InvalidField: neither or both of `input` and `messages`, wrong kinds of inputs, too many
    of them, or an image for a model that reads none.
    """
    if messages is not None:
        if value is not UNSET:
            raise InvalidField("messages", "is set beside input, expected one of them")
        return _read_messages(messages, card)
    if isinstance(value, UnsetType):
        raise InvalidField("input", "is missing")
    if isinstance(value, str) or not any(isinstance(entry, EmbeddingPart) for entry in value):
        return Inputs(to_prompts(value, card, "input"), [])  # type: ignore[arg-type]
    if not all(isinstance(entry, str | EmbeddingPart) for entry in value):
        raise unexpected("input", msgspec.to_builtins(value), _FORMS)
    prompts: list[Prompt] = []
    images: list[EmbeddedImage] = []
    for index, entry in enumerate(value):
        if isinstance(entry, EmbeddingPart):
            _add(f"input[{index}]", entry, card, prompts, images)
        else:
            prompts.append(str(entry))
    return Inputs(to_prompts(prompts, card, "input"), images)


def _read_messages(messages: Sequence[EmbeddingMessage], card: ModelCard) -> Inputs:
    """Return a conversation, or the only text or image of a chat."""
    prompts: list[Prompt] = []
    images: list[EmbeddedImage] = []
    if not card.takes_images:
        problem = "is for models that embed images; send the texts to embed as input"
        raise InvalidField("messages", problem)
    if card.embeds_chats:
        contents = [_to_content(index, message, card) for index, message in enumerate(messages)]
        roles = [message.role for message in messages]
        pairs = zip(roles, contents, strict=True)
        return Inputs([], [], [{"role": role, "content": content} for role, content in pairs])
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            prompts.append(message.content)
            continue
        for position, part in enumerate(message.content):
            _add(f"messages[{index}].content[{position}]", part, card, prompts, images)
    if len(prompts) != 1:
        problem = f"have {len(prompts)} texts and images, expected one: the model embeds either"
        raise InvalidField("messages", problem)
    return Inputs(prompts, images)


def _to_content(index: int, message: EmbeddingMessage, card: ModelCard) -> Any:
    """Return the content of a message for the chat template."""
    if isinstance(message.content, str):
        return message.content
    content: list[dict[str, Any]] = []
    for position, part in enumerate(message.content):
        texts: list[Prompt] = []
        images: list[EmbeddedImage] = []
        _add(f"messages[{index}].content[{position}]", part, card, texts, images)
        content += [
            {"type": "image_url", "image_url": {"url": image.url}, "field": image.field}
            for image in images
        ] or [{"type": "text", "text": text} for text in texts]
    return content


def _add(
    field: str,
    part: EmbeddingPart,
    card: ModelCard,
    prompts: list[Prompt],
    images: list[EmbeddedImage],
) -> None:
    """Add the text or the image of `part`.  Raises InvalidField."""
    if part.type is not None and part.type not in _KINDS:
        raise unexpected(f"{field}.type", part.type, "text or image_url")
    kind = _KINDS[part.type] if part.type else ("text" if part.url is None else "image")
    if (part.text is None) == (part.url is None) or (part.url is None) != (kind == "text"):
        raise InvalidField(field, "has no text and no image_url, or both: expected one of them")
    if part.url is None:
        prompts.append(part.text or "")
        return
    if not card.takes_images:
        raise InvalidField(field, "is an image, but the model embeds texts only")
    if not part.url:
        raise InvalidField(f"{field}.image_url", "has no url, expected a data URI of an image")
    images.append(EmbeddedImage(len(prompts), f"{field}.image_url", part.url))
    prompts.append("")
