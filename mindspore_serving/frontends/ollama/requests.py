"""The bodies that clients send."""

from typing import Any

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.chat.messages import ChatMessage, ContentPart, ToolCall
from mindspore_serving.frontends.chat.tools import Tool
from mindspore_serving.frontends.ollama.fields import NO_IMAGES, Options

Object = dict[str, Any]


class OllamaMessage(msgspec.Struct):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """The body of /api/show, where older clients have the model's `name`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class PullRequest(ModelRequest, kw_only=True):
    """The body of /api/pull."""

    stream: bool | None = None
    insecure: bool | None = None


class OllamaRequest(msgspec.Struct, kw_only=True):
    """What every request to a model may have."""

    model: str | None = None
    options: Object | None = None
    keep_alive: float | str | None = None


class OllamaGenerating(OllamaRequest, kw_only=True):
    """What chats and prompts share."""

    stream: bool | None = None
    format: Any = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    truncate: bool | None = None


class OllamaChatRequest(OllamaGenerating, kw_only=True):
    """The body of /api/chat."""

    messages: list[OllamaMessage] = []
    tools: list[Tool] | None = None


class OllamaGenerateRequest(OllamaGenerating, kw_only=True):
    """The body of /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[Int] | None = None
    images: list[Any] | None = None


# As the bodies are described.


class ChatBody(OllamaChatRequest, kw_only=True):
    options: Options | None = None  # type: ignore[assignment]  # what is read of the object


class GenerateBody(OllamaGenerateRequest, kw_only=True):
    options: Options | None = None  # type: ignore[assignment]


class OllamaEmbedRequest(OllamaRequest, kw_only=True):
    """The body of /api/embed."""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: Int | None = None


class EmbeddingsRequest(OllamaRequest, kw_only=True):
    """The body of /api/embeddings, the older form for one text."""

    prompt: str | None = None


def to_content(place: str, text: str, images: list[Any] | None, card: ModelCard) -> Any:
    """A content as one of OpenAI's chats, the images first.  Raises InvalidField for images that
    the model does not read.
    """
    if not images:
        return text
    if not card.takes_images:
        raise InvalidField(place, NO_IMAGES)
    if not all(isinstance(image, str) for image in images):
        raise InvalidField(place, "is wrong, expected a list of images in base64")
    parts = [ContentPart("image_url", image_url=f"data:;base64,{image}") for image in images]
    return [*parts, ContentPart("text", text)]


def to_messages(body: OllamaChatRequest, card: ModelCard) -> list[ChatMessage]:
    """The messages as those of OpenAI's chats.  Raises InvalidField."""
    return [
        ChatMessage(
            one.role,
            to_content(f"messages[{index}].images", one.content or "", one.images, card),
            name=one.tool_name,
            tool_calls=one.tool_calls,
            tool_call_id=one.tool_call_id,
            reasoning_content=one.thinking or None,
        )
        for index, one in enumerate(body.messages)
    ]
