"""Bodies of Ollama's requests."""

from typing import Any

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.chat.messages import ChatMessage, ContentPart, PlacedPart, ToolCall
from mindspore_serving.frontends.chat.tools import Tool
from mindspore_serving.frontends.ollama.fields import NO_IMAGES, Options

Object = dict[str, Any]


class OllamaMessage(msgspec.Struct):
    """A message."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """Body of /api/show; older clients send the model as `name`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class PullRequest(ModelRequest, kw_only=True):
    """Body of /api/pull."""

    stream: bool | None = None
    insecure: bool | None = None


class CreateRequest(ModelRequest, kw_only=True, rename={"from_": "from"}):
    """Body of /api/create; older clients send a `modelfile`."""

    from_: str | None = None
    parameters: Object | None = None
    system: str | None = None
    modelfile: str | None = None
    stream: bool | None = None
    license: Any = None
    template: str | None = None
    files: Object | None = None
    adapters: Object | None = None
    messages: list[Any] | None = None
    quantize: str | None = None


class CopyRequest(msgspec.Struct, kw_only=True):
    """Body of /api/copy."""

    source: str
    destination: str


class OllamaRequest(msgspec.Struct, kw_only=True):
    """Fields that every request to a model may have."""

    model: str | None = None
    options: Object | None = None
    keep_alive: float | str | None = None


class OllamaGenerationRequest(OllamaRequest, kw_only=True):
    """Fields that chats and prompts share."""

    stream: bool | None = None
    format: Any = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    truncate: bool | None = None


class OllamaChatRequest(OllamaGenerationRequest, kw_only=True):
    """Body of /api/chat."""

    messages: list[OllamaMessage] = []
    tools: list[Tool] | None = None


class OllamaGenerateRequest(OllamaGenerationRequest, kw_only=True):
    """Body of /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[Int] | None = None
    images: list[Any] | None = None


# The bodies as /openapi.json describes them; requests are decoded to the classes above.


class ChatBody(OllamaChatRequest, kw_only=True):
    """Body of /api/chat with typed options."""

    options: Options | None = None  # type: ignore[assignment]


class GenerateBody(OllamaGenerateRequest, kw_only=True):
    """Body of /api/generate with typed options."""

    options: Options | None = None  # type: ignore[assignment]


class OllamaEmbedRequest(OllamaRequest, kw_only=True):
    """Body of /api/embed."""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: Int | None = None


class EmbeddingsRequest(OllamaRequest, kw_only=True):
    """Body of /api/embeddings, the older route for a single text."""

    prompt: str | None = None


def to_content(field: str, text: str, images: list[Any] | None, card: ModelCard) -> Any:
    """Return the content of a message in OpenAI's form, images first.

    Raises InvalidField for images that the model does not read.
    """
    if not images:
        return text
    if not card.takes_images:
        raise InvalidField(field, NO_IMAGES)
    if not all(isinstance(image, str) for image in images):
        raise InvalidField(field, "is invalid, expected a list of images in base64")
    parts = [
        PlacedPart("image_url", image_url=f"data:;base64,{image}", field=f"{field}[{index}]")
        for index, image in enumerate(images)
    ]
    return [*parts, ContentPart("text", text)]


def to_messages(body: OllamaChatRequest, card: ModelCard) -> list[ChatMessage]:
    """Return the messages in the form of OpenAI's chats.

    Raises InvalidField.
    """
    return [
        ChatMessage(
            message.role,
            to_content(f"messages[{index}].images", message.content or "", message.images, card),
            name=message.tool_name,
            tool_calls=message.tool_calls,
            tool_call_id=message.tool_call_id,
            reasoning_content=message.thinking or None,
        )
        for index, message in enumerate(body.messages)
    ]
