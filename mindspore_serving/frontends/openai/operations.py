"""What OpenAI's routes take and answer."""

from typing import Any

import msgspec

from mindspore_serving.frontends.openai.adapters import LOAD, UNLOAD, LoadRequest, UnloadRequest
from mindspore_serving.frontends.openai.embeddings import EmbeddingRequest
from mindspore_serving.frontends.openai.fields import CHAT, COMPLETIONS, EMBEDDINGS
from mindspore_serving.frontends.openai.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
)
from mindspore_serving.frontends.openai.response_fields import RESPONSES
from mindspore_serving.frontends.openai.response_requests import CompactRequest, ResponseRequest
from mindspore_serving.frontends.openai.scores import (
    ClassifyAnswer,
    ClassifyRequest,
    ScoreAnswer,
    ScoreRequest,
)
from mindspore_serving.frontends.openai.stored_responses import BASE, COMPACT, COUNT
from mindspore_serving.frontends.openai.tokens import INFO
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    READY,
    STRING,
    TEXT,
    Body,
    Operation,
    Section,
)

ABOUT = "OpenAI's protocol, for language models."


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


_HELLO = [{"role": "user", "content": "Hello"}]


def section(model: str) -> Section:
    """With examples for `model`."""
    return Section("OpenAI", ABOUT, {JSON: Error}, (*_generating(model), *_others(model)))


def _generating(model: str) -> tuple[Operation, ...]:
    chat = {"model": model, "messages": _HELLO, "max_tokens": 8}
    completion = {"model": model, "prompt": "Hello", "max_tokens": 8}
    response = {"model": model, "input": "Hello", "max_output_tokens": 8}
    return (
        Operation(
            "POST",
            "/v1/chat/completions",
            "Answer a conversation; with `stream`, as events",
            {JSON: ChatCompletion, EVENTS: EVENT},
            Body(ChatRequest, {ChatRequest: CHAT}, chat),
        ),
        Operation(
            "POST",
            "/v1/completions",
            "Continue a text; with `stream`, as events",
            {JSON: Completion, EVENTS: EVENT},
            Body(CompletionRequest, {CompletionRequest: COMPLETIONS}, completion),
        ),
        Operation(
            "POST",
            "/v1/responses",
            "Answer a conversation of items; with `stream`, as events",
            {JSON: Response, EVENTS: EVENT},
            Body(ResponseRequest, {ResponseRequest: RESPONSES}, response),
        ),
        Operation(
            "POST",
            COUNT,
            "How many tokens the input of a response has",
            {JSON: InputTokens},
            Body(ResponseRequest, {ResponseRequest: RESPONSES}, response),
        ),
        Operation(
            "POST",
            COMPACT,
            "A conversation made short: what users said, and a summary",
            {JSON: Compacted},
            Body(CompactRequest),
        ),
        *_stored(),
    )


def _stored() -> tuple[Operation, ...]:
    path = f"{BASE}/{{name}}"
    return (
        Operation("GET", path, "A stored response", {JSON: Response}, query=("stream",)),
        Operation("DELETE", path, "Forget a stored response", {JSON: Deleted}),
        Operation("POST", path, "404: there is no such route", {}),
        Operation("POST", f"{path}/cancel", "400: nothing runs in the background", {}),
        Operation(
            "GET",
            f"{path}/input_items",
            "What a stored response was given",
            {JSON: InputItems},
            query=("after", "limit", "order"),
        ),
    )


def _others(model: str) -> tuple[Operation, ...]:
    return (
        Operation(
            "POST",
            "/v1/embeddings",
            "A vector for each text, by a model that embeds",
            {JSON: Embeddings},
            Body(
                EmbeddingRequest, {EmbeddingRequest: EMBEDDINGS}, {"model": model, "input": "Hello"}
            ),
        ),
        *_scoring(),
        Operation("GET", "/v1/models", "The language models", {JSON: Models}),
        Operation(
            "GET",
            "/v1/models/{name}",
            "A language model; of other servables, as in protocol v1",
            {JSON: (Model, READY)},
            others={"503": {JSON: (Error, READY)}},
        ),
        Operation(
            "POST",
            LOAD,
            "Load a LoRA adapter; with `load_inplace`, in the place of one of that name",
            {TEXT: STRING},
            Body(LoadRequest),
        ),
        Operation("POST", UNLOAD, "Unload a LoRA adapter", {TEXT: STRING}, Body(UnloadRequest)),
        Operation(
            "GET",
            INFO,
            "The tokenizer, as tokenizer_config.json has it",
            {JSON: {"type": "object", "required": ["tokenizer_class"]}},
            query=("model",),
        ),
        Operation(
            "POST",
            "/detokenize",
            "The text of token ids",
            {JSON: Prompt},
            Body(DetokenizeRequest, example={"model": model, "tokens": [1, 2]}),
        ),
    )


def _scoring() -> tuple[Operation, ...]:
    rates, labels = {JSON: ScoreAnswer}, {JSON: ClassifyAnswer}
    what = ("How well texts fit a query, by a reranker", "The labels of texts, by a classifier")
    return (
        Operation("POST", "/v1/score", what[0], rates, Body(ScoreRequest)),
        Operation("POST", "/score", what[0], rates, Body(ScoreRequest)),
        Operation("POST", "/v1/classify", what[1], labels, Body(ClassifyRequest)),
        Operation("POST", "/classify", what[1], labels, Body(ClassifyRequest)),
    )
