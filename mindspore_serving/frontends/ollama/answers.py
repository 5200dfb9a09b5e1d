"""Bodies of the answers of Ollama's protocol."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class OllamaError(msgspec.Struct):
    """Body of an error."""

    error: str


class OllamaAnswerMessage(msgspec.Struct):
    """Message of the assistant."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, kw_only=True):
    """Answer to a chat, or a part of it; the last part has counts, and times in nanoseconds."""

    model: str
    created_at: str
    message: OllamaAnswerMessage
    logprobs: list[dict[str, Any]] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """Answer to a prompt, or a part of it; the last part has counts, and times in nanoseconds."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    logprobs: list[dict[str, Any]] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct, kw_only=True):
    """Answer of /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class Vector(msgspec.Struct):
    """Answer of /api/embeddings."""

    embedding: list[float]


class OllamaDetails(msgspec.Struct):
    """Details of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(msgspec.Struct, kw_only=True):
    """A model; `size` is 0 if unknown, and only running models have the last three fields."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: OllamaDetails
    size_vram: int | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(msgspec.Struct):
    """Answer of /api/tags and /api/ps."""

    models: list[ListedModel]


class OllamaModelDetails(msgspec.Struct):
    """Answer of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    license: str | UnsetType = UNSET
    system: str | UnsetType = UNSET


class Pulled(msgspec.Struct):
    """Step of /api/pull and /api/create; sizes are in bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


class Version(msgspec.Struct):
    """Answer of /api/version."""

    version: str
