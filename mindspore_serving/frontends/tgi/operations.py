"""What the routes of Text Generation Inference take and answer."""

import msgspec

from mindspore_serving.frontends.openai.operations import Error as OpenAIError
from mindspore_serving.frontends.openai.operations import Tokens
from mindspore_serving.frontends.openai.requests import TokenizeRequest
from mindspore_serving.frontends.operation import (
    EVENT,
    EVENTS,
    JSON,
    STRING,
    TEXT,
    Body,
    Operation,
    Section,
    Unlimited,
)
from mindspore_serving.frontends.tgi.answers import (
    ChatTokenizeResponse,
    GenerateResponse,
    Info,
    SimpleToken,
)
from mindspore_serving.frontends.tgi.fields import FIELDS
from mindspore_serving.frontends.tgi.requests import (
    ChatRequest,
    CompatRequest,
    GenerateRequest,
    Parameters,
)

ABOUT = "Text Generation Inference: the routes of Hugging Face's server, for language models."
_EXAMPLE = {"inputs": "Hello", "parameters": {"max_new_tokens": 8}}
_MESSAGES = [{"role": "user", "content": "Hello"}]


class StreamParameters(Parameters):
    """Those of a stream, in which errors are events."""


class StreamRequest(GenerateRequest, kw_only=True):
    parameters: StreamParameters = msgspec.field(default_factory=StreamParameters)


class EitherRequest(CompatRequest, kw_only=True):
    parameters: StreamParameters = msgspec.field(default_factory=StreamParameters)


class Error(msgspec.Struct):
    error: str
    error_type: str


EITHER = {"4XX": {JSON: (Error, OpenAIError), TEXT: STRING}}
"""Of paths that both protocols have."""


def section() -> Section:
    return Section("TGI", ABOUT, {JSON: Error, TEXT: STRING}, (*_generating(), *_others()))


def _body(kind: type) -> Body:
    return Body(kind, {Parameters: FIELDS}, _EXAMPLE)


def _stream_body(kind: type) -> Body:
    return Body(kind, {StreamParameters: Unlimited(FIELDS)}, _EXAMPLE)


def _generating() -> tuple[Operation, ...]:
    whole = {JSON: GenerateResponse}
    either = {JSON: list[GenerateResponse], EVENTS: EVENT}
    return (
        Operation("POST", "/generate", "Continue a text", whole, _body(GenerateRequest)),
        Operation(
            "POST",
            "/generate_stream",
            "Continue a text, as events",
            {EVENTS: EVENT},
            _stream_body(StreamRequest),
        ),
        Operation("POST", "/", "Either of both, by `stream`", either, _stream_body(EitherRequest)),
        Operation(
            "POST",
            "/invocations",
            "SageMaker's route: the same, or a body of OpenAI's chats or completions",
            {JSON: (list[GenerateResponse], {"type": "object"}), EVENTS: EVENT},
            _stream_body(EitherRequest),
            others=EITHER,
        ),
    )


def _others() -> tuple[Operation, ...]:
    return (
        Operation(
            "POST",
            "/tokenize",
            "The tokens of a text; of a prompt or messages in vLLM's form",
            {JSON: (list[SimpleToken], Tokens)},
            Body((GenerateRequest, TokenizeRequest), {Parameters: FIELDS}, {"inputs": "Hello"}),
            others=EITHER,
        ),
        Operation(
            "POST",
            "/chat_tokenize",
            "The tokens of a conversation",
            {JSON: ChatTokenizeResponse},
            Body(ChatRequest, example={"messages": _MESSAGES}),
        ),
        Operation("GET", "/info", "The model and the limits", {JSON: Info}),
        Operation("GET", "/ping", "200 if everything can be called", {}),
    )
