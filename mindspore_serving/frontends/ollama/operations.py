"""What the routes of Ollama's protocol take and answer."""

from typing import Any

import msgspec

from mindspore_serving.frontends.ollama.answering import LINES
from mindspore_serving.frontends.ollama.fields import CHAT, EMBED, GENERATE, OPTIONS, Options
from mindspore_serving.frontends.ollama.models import CHANGING
from mindspore_serving.frontends.ollama.requests import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    ModelRequest,
    PullRequest,
)
from mindspore_serving.frontends.operation import JSON, STRING, Body, Lax, Operation, Section

ABOUT = "Ollama's protocol, for language models."


class ChatBody(ChatRequest, kw_only=True):
    options: Options | None = None  # type: ignore[assignment]  # what is read of the object


class GenerateBody(GenerateRequest, kw_only=True):
    options: Options | None = None  # type: ignore[assignment]


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


def section(model: str) -> Section:
    """With examples for `model`."""
    return Section(
        "Ollama", ABOUT, {JSON: Error}, (*_generating(model), *_embedding(), *_others(model))
    )


def _generating(model: str) -> tuple[Operation, ...]:
    options = {"model": model, "options": {"num_predict": 8}}
    chat = {**options, "messages": [{"role": "user", "content": "Hello"}]}
    return (
        Operation(
            "POST",
            "/api/chat",
            "Answer a conversation, as lines of JSON unless `stream` is false",
            {JSON: ChatAnswer, LINES: STRING},
            Body(ChatBody, {ChatBody: CHAT, Options: Lax(OPTIONS)}, chat),
        ),
        Operation(
            "POST",
            "/api/generate",
            "Answer a prompt, as lines of JSON unless `stream` is false",
            {JSON: GenerateAnswer, LINES: STRING},
            Body(
                GenerateBody,
                {GenerateBody: GENERATE, Options: Lax(OPTIONS)},
                {**options, "prompt": "Hello"},
            ),
        ),
    )


def _embedding() -> tuple[Operation, ...]:
    return (
        Operation(
            "POST",
            "/api/embed",
            "A vector for each text, by a model that embeds",
            {JSON: Embeddings},
            Body(EmbedRequest, {EmbedRequest: EMBED}),
        ),
        Operation(
            "POST",
            "/api/embeddings",
            "A vector for one text",
            {JSON: Vector},
            Body(EmbeddingsRequest, {EmbeddingsRequest: EMBED}),
        ),
    )


def _others(model: str) -> tuple[Operation, ...]:
    shown = {"model": model}
    return (
        Operation("GET", "/api/tags", "The models", {JSON: Models}),
        Operation("GET", "/api/ps", "The models, which are all loaded", {JSON: Models}),
        Operation("GET", "/api/version", "That of this server", {JSON: Version}),
        Operation(
            "POST", "/api/show", "One model", {JSON: Shown}, Body(ModelRequest, example=shown)
        ),
        Operation(
            "POST",
            "/api/pull",
            "That a model is served, as lines of JSON unless `stream` is false; else 403",
            {JSON: Pulled, LINES: STRING},
            Body(PullRequest, example={**shown, "stream": False}),
        ),
        *(
            Operation(verbs[0], f"/api/{name}", "403: models are not changed by clients", {})
            for name, verbs in CHANGING.items()
        ),
    )
