"""What the routes of OpenAI's protocol answer."""

from typing import Any

import msgspec


class Problem(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    error: Problem


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Answer(msgspec.Struct):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage


class AnswerMessage(msgspec.Struct):
    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatCompletion(Answer):
    object: str
    choices: list[ChatChoice]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Completion(Answer):
    object: str
    choices: list[CompletionChoice]


class Response(msgspec.Struct):
    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None


class Compacted(msgspec.Struct):
    id: str
    object: str
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class Deleted(msgspec.Struct):
    id: str
    object: str
    deleted: bool


class InputItems(msgspec.Struct):
    object: str
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


class InputTokens(msgspec.Struct):
    object: str
    input_tokens: int


class Embedding(msgspec.Struct):
    object: str
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct):
    object: str
    data: list[Embedding]
    model: str
    usage: dict[str, int]


class Model(msgspec.Struct):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int
    root: str
    parent: str | None


class Models(msgspec.Struct):
    object: str
    data: list[Model]


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(msgspec.Struct):
    prompt: str
