"""Bodies of the answers of OpenAI's protocol; fields that are not set are left out."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class PromptDetails(msgspec.Struct):
    """Breakdown of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Breakdown of the completion's tokens.

    Predictions are draft tokens of speculative decoding; rejected ones are not part of the answer.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct):
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChunkHead(msgspec.Struct, kw_only=True):
    """Fields that every chunk of an answer repeats; `created` is in seconds since 1970."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class AnswerMessage(msgspec.Struct):
    """Message of the assistant."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """Choice of a chat."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(ChunkHead, kw_only=True):
    """Answer of /v1/chat/completions."""

    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct):
    """Choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class OpenAICompletion(ChunkHead, kw_only=True):
    """Answer of /v1/completions."""

    choices: list[CompletionChoice]
    usage: Usage


class OpenAIResponse(msgspec.Struct, kw_only=True):
    """Answer of /v1/responses."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None
    status: str
    background: bool = False
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: dict[str, str] | None = None
    reasoning: dict[str, Any]
    service_tier: str = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float | None
    truncation: str = "disabled"
    usage: dict[str, Any] | None
    user: str | None


class Compacted(msgspec.Struct):
    """Answer of /v1/responses/compact."""

    id: str
    object: str
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class Deleted(msgspec.Struct):
    """Answer to the deletion of a stored response."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputItems(msgspec.Struct):
    """Page of the input items of a stored response."""

    object: str
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | UnsetType = UNSET
    last_id: str | UnsetType = UNSET


class InputTokens(msgspec.Struct, kw_only=True):
    """Answer of /v1/responses/input_tokens."""

    object: str = "response.input_tokens"
    input_tokens: int


class Embedding(msgspec.Struct):
    """Vector of one text: numbers, or base64 of little-endian float32."""

    object: str
    index: int
    embedding: list[float] | str


class OpenAIEmbeddings(msgspec.Struct):
    """Answer of /v1/embeddings."""

    object: str
    data: list[Embedding]
    model: str
    usage: dict[str, int]


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model, or a LoRA adapter.

    Extensions of OpenAI's schema: `max_model_len` (tokens of prompt and answer together), `root`
    (the directory of an adapter), `parent` (the model it belongs to), `input_modalities` ("text",
    "image", "audio") and `output_modalities` ("audio").  Of models that generate:
    `default_sampling`, the sampling parameters of requests that leave them out, `sampling_source`
    ("model", "server" or "operator"), `default_max_tokens` (null: no limit but the context's) and
    `suggested_max_tokens`, a limit for chats of people.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "mindspore-serving"
    max_model_len: int
    root: str
    parent: str | None
    input_modalities: list[str] | UnsetType = UNSET
    output_modalities: list[str] | UnsetType = UNSET
    default_sampling: dict[str, int | float] | UnsetType = UNSET
    sampling_source: str | UnsetType = UNSET
    default_max_tokens: int | None | UnsetType = UNSET
    suggested_max_tokens: int | UnsetType = UNSET


class OpenAIModels(msgspec.Struct, kw_only=True):
    """Answer of /v1/models."""

    object: str = "list"
    data: list[OpenAIModel]


class Tokens(msgspec.Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class OpenAIPrompt(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str
