"""What the routes of Ollama's protocol answer."""

from typing import Any

import msgspec


class Error(msgspec.Struct):
    error: str


class Answer(msgspec.Struct):
    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[dict[str, Any]] | None = None


class ChatAnswer(Answer, kw_only=True):
    message: dict[str, Any]


class GenerateAnswer(Answer, kw_only=True):
    response: str
    thinking: str | None = None


class Embeddings(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class Vector(msgspec.Struct):
    embedding: list[float]


class Models(msgspec.Struct):
    models: list[dict[str, Any]]


class Shown(msgspec.Struct):
    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Pulled(msgspec.Struct):
    status: str


class Version(msgspec.Struct):
    version: str
